"""What `rollmill sweep` and `rollmill suite` print at their end."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any, Protocol

from rollmill.cli.command import EXIT_FAILED, EXIT_INTERRUPTED


class CampaignResult(Protocol):
    """The result of a sweep or a suite."""

    @property
    def folder(self) -> Path:
        """Where the same command continues."""
        ...

    @property
    def page(self) -> Path | None:
        """The page; None if none was written."""
        ...

    @property
    def is_complete(self) -> bool:
        """Whether all runs have ended."""
        ...

    def describe(self) -> str:
        """Describe it in words."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON data."""
        ...


def show_result(result: CampaignResult, *, as_json: bool, has_failed: bool) -> int:
    """Print a result.

    Args:
        result: The result.
        as_json: Whether to end with one line of JSON.
        has_failed: Whether a complete campaign counts as failed.

    Returns:
        The exit code.
    """
    print(result.describe())
    if result.page is not None:
        print(result.page)
    if as_json:
        print(json.dumps(result.to_dict()))
    if not result.is_complete:
        print(f"interrupted; the same command continues in {shlex.quote(str(result.folder))}", file=sys.stderr)
        return EXIT_INTERRUPTED
    return EXIT_FAILED if has_failed else 0
