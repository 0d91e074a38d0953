"""Recipes that generate clients of the gateway, and the streaming helper for TypeScript; `docs/sdks.md` tells them."""
