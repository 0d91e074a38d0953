"""Heads of requests as bytes, whole, unfinished and forwarded."""

REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def head(headers: int = 1, value_bytes: int = 1, target_bytes: int = 2) -> bytes:
    lines = [b"GET /" + b"a" * (target_bytes - 1) + b" HTTP/1.1", b"Host: localhost"]
    lines += [b"X-%d: " % number + b"v" * value_bytes for number in range(headers - 1)]
    return b"\r\n".join([*lines, b"", b""])


UNFINISHED = (
    b"POST /deliberations HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n"
)


def forwarded_for(value: str, start: bytes = REQUEST[:-2]) -> bytes:
    return start + f"X-Forwarded-For: {value}\r\n\r\n".encode()
