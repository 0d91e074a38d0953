"""Façades: other APIs over the same deliberations. Each is a reader of requests and a writer of events over one base.

The base: `door` has the operations that a façade may use, `moments` is one reading of a deliberation's events, and
`declaration` is the closed set of a façade's contributions. `outcomes` and `summaries` read verdicts and work.
"""

from app.facades.a2a import A2A
from app.facades.ag_ui import AG_UI
from app.facades.chat import CHAT
from app.facades.declaration import Facade
from app.facades.responses import RESPONSES

FACADES: tuple[Facade, ...] = (CHAT, RESPONSES, A2A, AG_UI)
