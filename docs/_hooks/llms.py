"""``llms.txt``: the pages with a line for each, for language models (https://llmstxt.org), and their Markdown."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.nav import Navigation
    from mkdocs.structure.pages import Page

_LINE = re.compile(r"^- \[([^\]]+)\]\(([^)#]+\.md)\)(?:: (.*(?:\n  .*)*))?", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


class Entry(NamedTuple):
    """A page: the part of the navigation that it is in, its title, its file, and what it is about."""

    part: str
    title: str
    uri: str
    line: str


_texts: dict[str, str] = {}
_order: list[tuple[str, Page]] = []


def on_nav(nav: Navigation, *, config: MkDocsConfig, files: Files) -> Navigation:
    """Keep the order of the pages."""
    _texts.clear()
    _order[:] = [(page.ancestors[-1].title if page.ancestors else "", page) for page in nav.pages]
    return nav


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Keep the text of a page."""
    _texts[page.file.src_uri] = markdown
    return markdown


def on_post_build(*, config: MkDocsConfig) -> None:
    """Write ``llms.txt``, and each page's Markdown beside its HTML."""
    site = Path(config.site_dir)
    lines = described(_texts["index.md"], "index.md")
    entries = []
    for part, page in _order:
        uri, text = page.file.src_uri, _texts[page.file.src_uri]
        entries.append(Entry(part, str(page.title), uri, lines.get(uri) or first_sentence(text)))
        (site / uri).parent.mkdir(parents=True, exist_ok=True)
        (site / uri).write_text(text)
    (site / "llms.txt").write_text(index(config.site_name, config.site_description or "", entries))


def described(markdown: str, uri: str) -> dict[str, str]:
    """Return file -> line of the pages that a list of links describes."""
    folder = PurePosixPath(uri).parent
    return {
        os.path.normpath(folder / link): plain(line)
        for _, link, line in _LINE.findall(markdown)
        if line and not link.startswith("http")
    }


def first_sentence(markdown: str) -> str:
    """Return the first sentence of a page's first paragraph."""
    for block in re.split(r"\n\s*\n", re.sub(r"^(`{3,}|~{3,}).*?^\1", "", markdown, flags=re.MULTILINE | re.DOTALL)):
        text = plain(block.strip())
        if text and text[0] not in "#-|!<*`:\\":
            return re.split(r"(?<=\.)\s", text)[0]
    return ""


def plain(markdown: str) -> str:
    """Return text in one line, without links."""
    return " ".join(_LINK.sub(r"\1", markdown).split())


def index(name: str, description: str, entries: Iterable[Entry]) -> str:
    """Return the text of ``llms.txt``."""
    parts: dict[str, list[str]] = {}
    for entry in entries:
        line = f": {entry.line}" if entry.line else ""
        parts.setdefault(entry.part or "Start", []).append(f"- [{entry.title}]({entry.uri}){line}")
    body = "\n\n".join(f"## {part}\n\n" + "\n".join(lines) for part, lines in parts.items())
    return f"# {name}\n\n> {description}\n\n{body}\n"
