"""Files with secrets: headers such as `Authorization`, or variables of a process. They are read at each use."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from app.control_characters import has_control

_SECRET_CHARS_MIN = 6
_ESCAPED_BYTE = re.compile("%[0-9A-F]{2}")


class SecretsUnreadable(Exception):
    """The file is missing or has another form; the text names the file, and quotes nothing of it."""


def read_headers(path: str) -> dict[str, str]:
    """The headers by name, a `Name: value` on each line; raises SecretsUnreadable."""
    return _read(path, ":", "`Name: value`")


def read_variables(path: str) -> dict[str, str]:
    """The variables by name, a `NAME=value` on each line; raises SecretsUnreadable."""
    return _read(path, "=", "`NAME=value`")


def _read(path: str, between: str, form: str) -> dict[str, str]:
    try:
        lines = [
            line.partition(between) for line in Path(path).read_text(encoding="utf-8-sig").splitlines() if line.strip()
        ]
        if not all(mark and not has_control("".join((name, value)).replace("\t", " ")) for name, mark, value in lines):
            raise ValueError
        return {name.strip(): value.strip() for name, _, value in lines}
    except (OSError, ValueError) as exc:
        # Without `from` and without its text: it may quote the file.
        why = getattr(exc, "strerror", None) or f"each line is {form}"
        raise SecretsUnreadable(f"{path} cannot be read: {why}") from None


def secrets_of(values: Mapping[str, str]) -> tuple[str, ...]:
    """The values, and the words behind a scheme such as `Bearer`, that are long enough to be secrets.

    Each is there in all spellings of URLs and JSON.
    """
    words = (word for value in values.values() for word in value.split()[1:])
    secrets = (secret for secret in (*values.values(), *words) if len(secret) >= _SECRET_CHARS_MIN)
    return tuple(dict.fromkeys(spelling for secret in secrets for spelling in _spellings(secret)))


def _spellings(secret: str) -> Iterator[str]:
    yield secret
    yield (in_url := quote(secret, safe=""))
    yield _ESCAPED_BYTE.sub(lambda escaped: escaped[0].lower(), in_url)
    for ascii_only in (False, True):
        yield (in_json := json.dumps(secret, ensure_ascii=ascii_only)[1:-1])
        yield in_json.replace("/", "\\/")


def without(text: str, secrets: Sequence[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, "[secret]")
    return text
