"""The settings of children that the stack needs too; apart, because they take a twelfth of another command's start."""

from app.settings import Settings, setting
from app.webhooks.settings import SenderSettings


class StackSettings(Settings, SenderSettings):
    """The settings of the gateway, of the sender of webhooks and of workers, with the defaults of a stack."""

    planning: bool = setting(True, "Whether the consumer of plans runs.")
    webhooks: bool = setting(True, "Whether requests may name a webhook.")
    worker_drain_s: float = setting(5.0, "As `serve_deployments/arguments.py` declares it.", ge=0, le=3_600)
