"""Every router of the gateway, in the order of the document."""

from app import chat, deliberations, events, health, login, roles

ROUTERS = (deliberations.router, events.router, roles.router, login.router, health.router, chat.router)
