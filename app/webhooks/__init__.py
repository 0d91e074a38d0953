"""Webhooks: events of a deliberation, posted to its URL and signed by Standard Webhooks 1.0.0 (docs/webhooks.md).

`python -m app.webhooks` alone connects to hosts that clients name, and holds the secrets. Its state is in the log.
"""
