"""Recipes that generate clients of the gateway, and the streaming helper for TypeScript; see docs/sdks.md."""
