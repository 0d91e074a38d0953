"""Every router of the gateway, in the order of the document."""

from app import chat, cluster, deliberations, events, health, login, multiplex, roles
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
