"""Files with secrets: headers such as `Authorization`, or variables of a process. They are read at each use."""

from collections.abc import Mapping, Sequence
from pathlib import Path

_SECRET_CHARS_MIN = 6


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
            line.partition(between) for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()
        ]
        if not all(mark and "".join((name, value)).replace("\t", " ").isprintable() for name, mark, value in lines):
            raise ValueError
        return {name.strip(): value.strip() for name, _, value in lines}
    except (OSError, ValueError) as exc:
        # Without `from` and without its text: it may quote the file.
        why = getattr(exc, "strerror", None) or f"each line is {form}"
        raise SecretsUnreadable(f"{path} cannot be read: {why}") from None


def secrets_of(values: Mapping[str, str]) -> tuple[str, ...]:
    """The values, and the words behind a scheme such as `Bearer`, that are long enough to be secrets."""
    words = (word for value in values.values() for word in value.split()[1:])
    return tuple(each for each in (*values.values(), *words) if len(each) >= _SECRET_CHARS_MIN)


def without(text: str, secrets: Sequence[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, "[secret]")
    return text
