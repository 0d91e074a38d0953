"""Every router of the gateway, in the order of the document."""

from app import chat, deliberations, events, health, roles

ROUTERS = (deliberations.router, events.router, roles.router, health.router, chat.router)
