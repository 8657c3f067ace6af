"""Signed JSON files, and which of them may name code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollmill.runtime.signatures import Verdict, signing_key
from rollmill.runtime.signed_files import UntrustedError, read_signed, require_trust, signed, unsigned, verdict_on


def test_malformed_signed_files_raise_the_documented_error(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    for text, why in (("[]", "no JSON object"), ("[" * 100_000, "too deeply"), ("\xff", "Expecting value")):
        path.write_text(text)
        with pytest.raises(ValueError, match=why):
            read_signed(path)
    path.write_text(json.dumps({**signed({"a": 1}), "signature": {"key": signing_key().name, "hmac": "\ud800"}}))
    assert read_signed(path) == ({"a": 1}, Verdict.CHANGED)
    path.write_text(json.dumps(signed({"a": 1})))
    assert read_signed(path) == ({"a": 1}, Verdict.VALID)


def test_a_signature_covers_the_content_and_not_its_formatting() -> None:
    content = {"b": [1, (2, 3)], "a": "ä"}
    with_signature = signed(content)
    assert unsigned(with_signature) == content
    assert unsigned(content) == content
    assert verdict_on(with_signature) is Verdict.VALID
    again = json.loads(json.dumps(with_signature, indent=4, sort_keys=True))
    assert verdict_on(again) is Verdict.VALID
    assert verdict_on({**again, "a": "a"}) is Verdict.CHANGED
    assert verdict_on({**again, "c": None}) is Verdict.CHANGED
    assert verdict_on(content) is Verdict.UNSIGNED
    assert verdict_on(with_signature, "another purpose") is Verdict.CHANGED
    # An old signature is replaced, and not signed.
    assert signed(with_signature) == with_signature


def test_only_what_needs_trust_is_refused() -> None:
    path = Path("runs/theirs/config.json")
    for verdict in Verdict:
        require_trust(path, verdict, "", trust=False)
        require_trust(path, verdict, "it names a module", trust=True)
    require_trust(path, Verdict.VALID, "it names a module", trust=False)


@pytest.mark.parametrize(
    ("verdict", "why"),
    [
        (Verdict.CHANGED, "it was changed after a run of this user wrote it; undo the change"),
        (Verdict.FOREIGN, "it was signed with another key, by another user or on another machine"),
        (Verdict.UNSIGNED, "it has no signature, so it was written by somebody else, by hand or by an older version"),
    ],
)
def test_what_is_refused_says_the_reason_and_how_to_go_on(verdict: Verdict, why: str) -> None:
    with pytest.raises(UntrustedError) as error:
        require_trust(Path("theirs/config.json"), verdict, "it names a module", trust=False)
    text = str(error.value)
    assert text.startswith(f"theirs/config.json is not trusted, and it names a module: {why}")
    assert "say so with --trust (trust=True)" in text
    assert "Note:" not in text, "the own key can be read"


def test_an_own_key_that_cannot_be_read_is_noted_where_it_may_be_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    (tmp_path / "file").touch()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "temporary"))
    with pytest.raises(UntrustedError, match=r"Note: the key that signs this user's runs is kept in .*temporary"):
        require_trust(Path("a"), Verdict.FOREIGN, "it names a module", trust=False)
    with pytest.raises(UntrustedError) as error:
        require_trust(Path("a"), Verdict.UNSIGNED, "it names a module", trust=False)
    assert "Note:" not in str(error.value)
