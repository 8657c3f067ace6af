"""What messages say about optional packages."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from rollmill.extras import EXTRAS, install_command

ROOT = Path(__file__).parents[1]


def test_the_packages_are_those_of_the_projects_extras() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {name: tuple(re.sub(r">=.*", "", package) for package in extras[name]) for name in EXTRAS}
    assert named == EXTRAS
    assert extras.keys() - EXTRAS.keys() == {"all", "bench", "dev", "docs"}


@pytest.mark.parametrize("extra", EXTRAS)
def test_a_shell_passes_each_package_to_pip(extra: str) -> None:
    assert shlex.split(install_command(extra)) == ["pip", "install", *EXTRAS[extra]]


def test_no_message_names_the_package_itself_which_is_on_no_index() -> None:
    sources = [path for path in (ROOT / "src").rglob("*.py") if path.name != "extras.py"]
    assert [path.name for path in sources if re.search(r"pip install\W+rollmill", path.read_text())] == []
