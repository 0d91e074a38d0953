"""Slots that the processes of a node share, as locked files of its directory. A tenant holds half of them at most.

The kernel releases a lock with its process, so that no death keeps a slot. A sweep removes the files of unused slots.
"""

import asyncio
import fcntl
import hashlib
import os
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from app.tenant_slots import TenantSlots
from serve_deployments.node_directory.directory import NodeDirectory
from serve_deployments.node_directory.sweep import SLOT, has_locked, is_at

_CHECK_S = 0.02
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def processors(quota: Path = _QUOTA) -> int:
    """The processors that a node's processes may use: the machine's, or fewer where their control group has a quota."""
    machine = os.cpu_count() or 1
    try:
        allowed, period = quota.read_text().split()
    except OSError:
        return machine
    return machine if allowed == "max" else min(machine, max(1, int(allowed) // int(period)))


AT_ONCE = max(4, processors())
"""How many children of one kind a node runs at once for tools."""


class NodeSlots:
    """At most `total` holders at once over the processes of a node, half of them of one tenant. Others wait.

    In each process tenants take turns. A holder locks a slot of its tenant first, and then one of the node. So at most
    half of the slots' number of one tenant's holders, over all processes, wait for a slot of the node.
    """

    def __init__(self, node: NodeDirectory, name: str, total: int) -> None:
        self._node, self._name, self._total, self._share = node, name, total, total // 2
        self._own = TenantSlots(total, self._share)

    @asynccontextmanager
    async def slot(self, tenant: str) -> AsyncGenerator[None]:
        """Raises OSError where the node's directory cannot be used."""
        of_tenant = f"{self._name}-{hashlib.sha256(tenant.encode()).hexdigest()[:32]}"
        async with self._own.slot(tenant):
            if not self._node.is_own():
                raise PermissionError(f"the directory {self._node.path} belongs to another user")
            with ExitStack() as held:
                for names, number in ((of_tenant, self._share), (self._name, self._total)):
                    held.callback(os.close, await self._lock(names, number))
                yield

    async def _lock(self, name: str, number: int) -> int:
        """Wait for the first free lock of `number`; returns the descriptor that holds it."""
        while True:
            for place in range(number):
                path = self._node.path / f"{SLOT}{name}-{place}"
                lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
                if has_locked(lock, fcntl.LOCK_EX) and is_at(lock, path):
                    return lock
                os.close(lock)
            await asyncio.sleep(_CHECK_S)
