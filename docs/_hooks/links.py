"""Links that leave ``docs/``: the site has a page for each file of the checkout that a page links to.

Pages link to ``../ARCHITECTURE.md`` or ``../examples/vmpo.py``, which works on a forge. On the site the same link leads
to a page in ``source/``: Markdown as it is, other text highlighted, and a folder as a list of its files.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FOLDER = "source"

_FENCE = re.compile(r"(^ *(`{3,}|~{3,}).*?^ *\2 *$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\]\()([^)\s]+)(\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file outside of the documentation that a page, or such a file, links to."""
    from mkdocs.structure.files import File

    waiting = [DOCS / file.src_uri for file in files.documentation_pages()]
    seen = set(waiting)
    while waiting:
        page = waiting.pop()
        for target in sorted(_targets(page)):
            if target in seen or not _has_source_page(target):
                continue
            seen.add(target)
            files.append(File.generated(config, source_uri(target), content=source_page(target)))
            waiting += [target] if target.suffix == ".md" else []
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links of the checkout links of the site."""
    return rewrite(markdown, page.file.src_uri)


def rewrite(markdown: str, uri: str) -> str:
    """Return a page of the site whose links are those of the site.

    Args:
        markdown: With links as in the checkout.
        uri: Path of the page, below the folder of the documentation.
    """
    home = ROOT / PurePosixPath(uri).relative_to(FOLDER) if uri.startswith(f"{FOLDER}/") else DOCS / uri

    def to_site(link: str) -> str:
        path, hash_, anchor = link.partition("#")
        if not path or re.match(r"[a-z]+:", link):
            return link
        target = (home.parent / path).resolve()
        if not target.exists() or not target.is_relative_to(ROOT):
            return link  # MkDocs reports it.
        there = source_uri(target) if _has_source_page(target) else target.relative_to(DOCS).as_posix()
        relative = os.path.relpath(there, PurePosixPath(uri).parent)
        return f"{relative}{hash_}{anchor}"

    return _in_prose(markdown, lambda text: _LINK.sub(lambda m: f"{m[1]}{to_site(m[2])}{m[3]}", text))


def source_uri(target: Path) -> str:
    """Return the path of a file's page on the site."""
    name = target.relative_to(ROOT).as_posix()
    if target.is_dir():
        return f"{FOLDER}/{name}/index.md"
    return f"{FOLDER}/{name}" if target.suffix == ".md" else f"{FOLDER}/{name}.md"


def source_page(target: Path) -> str:
    """Return the Markdown of a file's page."""
    name = target.relative_to(ROOT).as_posix()
    if target.is_dir():
        files = sorted(path for path in target.iterdir() if path.suffix == ".py")
        rows = "\n".join(f"- [`{path.name}`]({path.name}): {_summary(path)}" for path in files)
        return f"# `{name}/`\n\n{rows}\n"
    if target.suffix == ".md":
        return target.read_text()
    language = {".py": "python", ".h": "cpp", ".cpp": "cpp"}.get(target.suffix, "text")
    return f"---\nsearch:\n  exclude: true\n---\n\n# `{name}`\n\n~~~~~~{language}\n{target.read_text()}\n~~~~~~\n"


def _has_source_page(target: Path) -> bool:
    is_script = target.suffix == ".py"
    return (is_script or not target.is_relative_to(DOCS)) and target.is_relative_to(ROOT)


def _targets(page: Path) -> set[Path]:
    """What a page links to in the checkout; for a folder's list, its files."""
    if page.suffix != ".md":
        return set()
    found: set[Path] = set()

    def collect(text: str) -> str:
        for _, link, _ in _LINK.findall(text):
            path = link.partition("#")[0]
            target = (page.parent / path).resolve()
            if path and not re.match(r"[a-z]+:", link) and target.exists() and target.is_relative_to(ROOT):
                found.add(target)
                if target.is_dir():
                    found.update(script.resolve() for script in target.glob("*.py"))
        return text

    _in_prose(page.read_text(), collect)
    return found


def _in_prose(markdown: str, change: Callable[[str], str]) -> str:
    """Change what is in no block of code."""
    parts = _FENCE.split(markdown)
    # The pattern has two groups, so that text, block and the block's mark take turns.
    for index in range(0, len(parts), 3):
        parts[index] = change(parts[index])
    return "".join(part for index, part in enumerate(parts) if index % 3 != 2)


def _summary(script: Path) -> str:
    """The first line of a script's docstring."""
    lines = (ast.get_docstring(ast.parse(script.read_text())) or "").splitlines()
    return lines[0] if lines else ""
