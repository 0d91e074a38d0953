"""The driver's errors and time-outs, shared by everything that uses the connection to NATS."""

import nats.errors

REQUEST_TIMEOUT_S = 2.5
# nats-py raises these while the server is away, slow or lost. After any of them a write may or may not be stored.
UNREACHABLE: tuple[type[Exception], ...] = (
    nats.errors.TimeoutError,
    nats.errors.NoRespondersError,
    nats.errors.OutboundBufferLimitError,
    nats.errors.ConnectionClosedError,
    nats.errors.ConnectionReconnectingError,
    nats.errors.ConnectionDrainingError,
    nats.errors.StaleConnectionError,
    nats.errors.NoServersError,
    OSError,
    TimeoutError,
    # uvloop raises this, and asyncio nothing, for a write on a lost connection before its reader has noticed the loss.
    RuntimeError,
)
