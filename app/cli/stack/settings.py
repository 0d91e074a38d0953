"""The settings of children that the stack needs too; apart, because pydantic-settings would slow every command."""

from app.process_settings import GatewayDrain, StreamRules, WebhookTimeout, WorkerDrain, setting


class StackSettings(StreamRules, GatewayDrain, WebhookTimeout, WorkerDrain):
    """The streams, and how long children take to stop."""

    planning: bool = setting(True, "Whether the stack runs `python -m app.planning`.")
