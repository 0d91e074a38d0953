"""Signatures by Standard Webhooks 1.0.0, one per secret.

Each tenant's secret is derived from the operator's: none is stored, and none reveals another.
"""

import base64
import hmac
from collections.abc import Sequence
from datetime import datetime

from standardwebhooks import Webhook


def tenant_secret(master: str, tenant: str) -> str:
    """The secret that a tenant's receivers verify with: `whsec_` and 32 bytes in base64."""
    derived = hmac.digest(master.encode(), f"webhook\n{tenant}".encode(), "sha256")
    return "whsec_" + base64.b64encode(derived).decode()


class Signer:
    """Signs with all secrets, so that an operator can rotate them while receivers know only one."""

    def __init__(self, masters: Sequence[str]) -> None:
        assert masters, "a webhook is never sent unsigned"
        self._masters = tuple(masters)

    def headers(self, tenant: str, webhook_id: str, body: bytes, now: datetime) -> dict[str, str]:
        """The three headers of one attempt; `webhook_id` is the same in all attempts of a delivery."""
        text = body.decode()
        signatures = (Webhook(tenant_secret(master, tenant)).sign(webhook_id, now, text) for master in self._masters)
        return {
            "webhook-id": webhook_id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": " ".join(signatures),
        }
