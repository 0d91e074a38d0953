"""Façades: other APIs over the same deliberations. Each is a reader of requests and a writer of events over one base.

The base: `door` (the operations that a façade may use), `moments` (one reading of a deliberation's events),
`outcomes`, `summaries`, and `declaration` (the closed set of a façade's contributions).
"""

from app.facades.chat import CHAT
from app.facades.declaration import Facade
from app.facades.responses import RESPONSES

FACADES: tuple[Facade, ...] = (CHAT, RESPONSES)
