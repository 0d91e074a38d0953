"""The HTTP client of engines, their wire format and the circuit breaker."""
