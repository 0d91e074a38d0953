"""Recipes for clients of the gateway, and the streaming library for TypeScript; see `docs/sdks.md`."""
