"""Façades: other APIs over the same deliberations. Each is a reader of requests and a writer of events over one base.

The base: `door` has the operations that a façade may use, and `moments` is one reading of a deliberation's events.
`declaration` is the closed set of what a façade adds to the gateway. `outcomes` and `summaries` read verdicts and
contributions.
"""

from app.facades.a2a import A2A
from app.facades.ag_ui import AG_UI
from app.facades.chat import CHAT
from app.facades.declaration import Facade
from app.facades.openai_files import FILES
from app.facades.responses import RESPONSES

FACADES: tuple[Facade, ...] = (CHAT, RESPONSES, FILES, A2A, AG_UI)
