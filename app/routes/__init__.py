"""The routers and the middleware in front of them."""
