"""The routers, and what every request passes before them."""
