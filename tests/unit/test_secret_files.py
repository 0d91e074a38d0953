import json
from urllib.parse import quote

import pytest

from app.secret_files import secrets_of, without

SECRET = 'pa/ss"wörd+'


@pytest.mark.parametrize(
    "spelling",
    [
        SECRET,
        quote(SECRET, safe=""),
        quote(SECRET, safe="")
        .replace("%2F", "%2f")
        .replace("%22", "%22")
        .replace("%C3%B6", "%c3%b6")
        .replace("%2B", "%2b"),
        json.dumps(SECRET)[1:-1],
        json.dumps(SECRET)[1:-1].replace("/", "\\/"),
        json.dumps(SECRET, ensure_ascii=False)[1:-1],
        json.dumps(SECRET, ensure_ascii=False)[1:-1].replace("/", "\\/"),
    ],
)
def test_a_secret_is_replaced_however_a_url_or_json_spells_it(spelling: str) -> None:
    secrets = secrets_of({"Authorization": f"Bearer {SECRET}"})
    assert without(f"refused: {spelling} is wrong", secrets) == "refused: [secret] is wrong"
    assert without(f"refused: Bearer {SECRET}", secrets) == "refused: [secret]"


def test_what_is_too_short_for_a_secret_stays() -> None:
    assert without("a key of 5 letters: abcde", secrets_of({"X-Key": "abcde"})) == "a key of 5 letters: abcde"
