"""The HTTP client of engines, their wire format, and the limits on requests to them."""
