"""Every router of the gateway, in the order of the OpenAPI document."""

from app.openai import routes as openai
from app.routes import cluster, deliberations, events, health, login, multiplexed, roles
from app.webhooks import routes as webhooks

ROUTERS = (
    deliberations.router,
    events.router,
    multiplexed.router,
    webhooks.router,
    roles.router,
    login.router,
    health.router,
    cluster.router,
    openai.router,
)
