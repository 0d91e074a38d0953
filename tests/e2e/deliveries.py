"""The deliveries of a stack's webhooks."""

import asyncio
from typing import Any

from app.webhooks.signatures import tenant_secret
from tests.e2e.conftest import Stack


def secret_of(stack: Stack) -> str:
    return tenant_secret((stack.data_dir / "webhook_secret").read_text(), "default")


async def deliveries(stack: Stack, id: str) -> list[dict[str, Any]]:
    return (await stack.client.get(f"/deliberations/{id}/deliveries")).raise_for_status().json()["items"]


async def all_delivered(stack: Stack, id: str, timeout_s: float) -> list[dict[str, Any]]:
    async with asyncio.timeout(timeout_s):
        while True:
            items = await deliveries(stack, id)
            if items and all(delivery["status"] == "delivered" for delivery in items):
                return items
            await asyncio.sleep(0.1)
