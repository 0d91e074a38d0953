"""Every router of the gateway, in the order of the document."""

from app.openai import routes as chat
from app.routes import cluster, deliberations, events, health, login, roles
from app.routes import multiplexed as multiplex
from app.webhooks import routes as webhooks

ROUTERS = (
    deliberations.router,
    events.router,
    multiplex.router,
    webhooks.router,
    roles.router,
    login.router,
    health.router,
    cluster.router,
    chat.router,
)
