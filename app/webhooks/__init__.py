"""Webhooks: events of a deliberation, posted to the URL in its request and signed by Standard Webhooks 1.0.0.

`python -m app.webhooks` is the sender. This process alone connects to hosts that clients name and holds the signing
secrets. Its state is in the log, so any number of senders share the work. Guarantees: docs/webhooks.md.
"""
