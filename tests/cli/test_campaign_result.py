"""What a sweep or a suite prints at its end."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rollmill.cli.campaign_result import show_result


@dataclass
class Result:
    is_complete: bool = True
    page: Path | None = None
    folder: Path = Path("a folder")

    def describe(self) -> str:
        return "three runs"

    def to_dict(self) -> dict[str, Any]:
        return {"runs": 3}


@pytest.mark.parametrize(
    ("result", "has_failed", "code"),
    [(Result(), False, 0), (Result(), True, 1), (Result(is_complete=False), True, 130)],
)
def test_the_exit_code_says_how_it_ended(result: Result, has_failed: bool, code: int) -> None:
    assert show_result(result, as_json=False, has_failed=has_failed) == code


def test_words_the_page_and_json_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    show_result(Result(is_complete=False, page=Path("report.html")), as_json=True, has_failed=False)
    printed = capsys.readouterr()
    words, page, data = printed.out.splitlines()
    assert (words, page, json.loads(data)) == ("three runs", "report.html", {"runs": 3})
    assert "continues in 'a folder'" in printed.err
