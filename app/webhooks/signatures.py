"""Signatures as Standard Webhooks 1.0.0 has them: HMAC-SHA256 over id, time and body, one for each secret.

A tenant's secret is derived from one that the operator holds: none has to be stored, and none tells another's.
"""

import base64
import hmac
from collections.abc import Sequence
from datetime import datetime

from standardwebhooks import Webhook

MASTER_CHARS_MIN = 32


def tenant_secret(master: str, tenant: str) -> str:
    """What a receiver checks a tenant's webhooks with: `whsec_` and 32 bytes in base64."""
    derived = hmac.digest(master.encode(), f"webhook\n{tenant}".encode(), "sha256")
    return "whsec_" + base64.b64encode(derived).decode()


class Signer:
    """Signs with every secret at once, so that they can be changed while receivers know only one of them."""

    def __init__(self, masters: Sequence[str]) -> None:
        assert masters, "what is not signed is not sent"
        self._masters = tuple(masters)

    def headers(self, tenant: str, webhook_id: str, body: bytes, now: datetime) -> dict[str, str]:
        """The three headers of one attempt; `webhook_id` is the same for all attempts at one delivery."""
        text = body.decode()
        signatures = (Webhook(tenant_secret(master, tenant)).sign(webhook_id, now, text) for master in self._masters)
        return {
            "webhook-id": webhook_id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": " ".join(signatures),
        }
