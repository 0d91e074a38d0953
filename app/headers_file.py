"""Files with headers, such as `Authorization`: a `Name: value` on each line. They are read at each use."""

from collections.abc import Mapping, Sequence
from pathlib import Path

_SECRET_CHARS_MIN = 6


class HeadersUnreadable(Exception):
    """The file is missing or has another form; the text names the file, and quotes nothing of it."""


def read_headers(path: Path | str) -> dict[str, str]:
    """The headers by name; raises HeadersUnreadable."""
    try:
        lines = [line.partition(":") for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]
        if not all(colon and "".join((name, value)).replace("\t", " ").isprintable() for name, colon, value in lines):
            raise ValueError
        return {name.strip(): value.strip() for name, _, value in lines}
    except (OSError, ValueError) as exc:
        # Without `from` and without its text: it may quote the file.
        why = getattr(exc, "strerror", None) or "each line is `Name: value`"
        raise HeadersUnreadable(f"headers_file {path} cannot be read: {why}") from None


def secrets_of(headers: Mapping[str, str]) -> tuple[str, ...]:
    """The values, and the words behind a scheme such as `Bearer`, that are long enough to be secrets."""
    words = (word for value in headers.values() for word in value.split()[1:])
    return tuple(each for each in (*headers.values(), *words) if len(each) >= _SECRET_CHARS_MIN)


def without(text: str, secrets: Sequence[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, "[secret]")
    return text
