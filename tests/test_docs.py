"""The documentation: every relative link resolves, and the README stays a landing page."""

from __future__ import annotations

import importlib
import operator
import re
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[1]
_PAGES = sorted([*_ROOT.glob("*.md"), *_ROOT.glob("docs/**/*.md")])
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def _anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ +(.*)$", _FENCE.sub("", page.read_text()), re.MULTILINE)
    found: set[str] = set()
    for heading in headings:
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        repeated = sum(
            known == anchor or re.fullmatch(rf"{re.escape(anchor)}-\d+", known) is not None for known in found
        )
        found.add(f"{anchor}-{repeated}" if repeated else anchor)
    return found


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: str(page.relative_to(_ROOT)))
def test_every_relative_link_resolves(page: Path) -> None:
    broken = []
    for link in _LINK.findall(_FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in _anchors(target)):
            broken.append(link)
    assert not broken


def test_every_page_of_the_documentation_is_in_its_index() -> None:
    index = (_ROOT / "docs" / "index.md").read_text()
    pages = [page.name for page in (_ROOT / "docs").glob("*.md") if page.name != "index.md"]
    assert [name for name in pages if f"]({name})" not in index] == []


def test_the_readme_is_a_landing_page() -> None:
    assert len((_ROOT / "README.md").read_text().split()) <= 900


def test_the_walk_names_functions_that_exist_and_never_goes_back() -> None:
    walk = (_ROOT / "ARCHITECTURE.md").read_text().partition("## A walk")[2].partition("\n## ")[0]
    steps = re.findall(r"^\d+\. `([\w/]+\.py)`, `([\w.]+)`", walk, re.MULTILINE)
    assert len(steps) > 15
    files = [file for file, _ in steps]
    assert len(files) == len(set(files)), "a step goes back to a file that it has left"
    for file, name in steps:
        module = importlib.import_module("rollmill." + file.removesuffix(".py").replace("/", "."))
        assert callable(operator.attrgetter(name)(module)), f"{file} has no {name}"
