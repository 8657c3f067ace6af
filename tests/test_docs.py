"""The documentation: links resolve, pages are listed, and settings and metrics are those of the code."""

from __future__ import annotations

import importlib
import importlib.util
import operator
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import rollmill
from rollmill.cli.program import make_commands
from rollmill.envs.config import EnvConfig
from rollmill.reporting.metric_table import METRICS
from rollmill.settings.config import Config
from rollmill.settings.option_list import list_options
from rollmill.settings.option_values import format_value
from rollmill.settings.options import apply, flatten, full_keys

_ROOT = Path(__file__).resolve().parents[1]
_PAGES = sorted([*_ROOT.glob("*.md"), *_ROOT.glob("docs/**/*.md")])
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_DOCS = _ROOT / "docs"
_ALGORITHMS = sorted(page for page in _DOCS.glob("algorithms/*.md") if page.name != "index.md")
_KEYS = {option.key for option in list_options(Config)}


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
        if not target.exists() or (anchor and target.suffix == ".md" and not _has_anchor(target, anchor)):
            broken.append(link)
    assert not broken


def _has_anchor(page: Path, anchor: str) -> bool:
    """Whether a page has an anchor; those of a generated part are checked when the site is built."""
    return anchor in _anchors(page) or "<!-- generated: " in page.read_text()


def test_every_page_of_the_documentation_is_in_its_index() -> None:
    index = (_DOCS / "index.md").read_text()
    assert [name for name in _pages() if f"]({name})" not in index] == []


def test_every_page_of_the_documentation_is_in_the_navigation_of_the_site() -> None:
    navigation = (_ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2].partition("\ntheme:")[0]
    listed = re.findall(r"(\S+\.md)$", navigation, re.MULTILINE)
    assert len(listed) == len(set(listed))
    months = {f"journal/{page.name}" for page in (_DOCS / "journal").glob("[0-9]*.md")}
    assert {name for name in listed if not name.startswith("source/")} == {*_pages(), "index.md", *months}


def _pages() -> list[str]:
    """The pages besides the index and the months of the journal."""
    found = [page.relative_to(_DOCS).as_posix() for page in _DOCS.rglob("*.md")]
    return [name for name in found if name != "index.md" and not re.match(r"journal/\d", name)]


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


def _hook(name: str) -> ModuleType:
    """A module of the site's hooks, which no package contains."""
    spec = importlib.util.spec_from_file_location(name, _DOCS / "_hooks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_setting_is_on_the_page_of_settings_with_its_default_and_text() -> None:
    page = _hook("reference").settings()
    entries = dict(re.findall(r"^\[`([^`]+)`\]\(#\1\)\{ #\1 \}\n:   (.*?)(?=\n\n\S|\Z)", page, re.M | re.S))
    assert entries.keys() == _KEYS - {"preset"}
    for option in list_options(Config):
        if option.key != "preset":
            assert (f"default `{option.default}`" if option.default else "empty by default") in entries[option.key]
            assert len(entries[option.key].split("\n\n")) == 2, f"{option.key} has no text"
    assert "a finite number above 0" in entries["learner.clip_range"]
    assert "``" not in page


def test_every_command_and_option_is_on_the_page_of_commands() -> None:
    page = _hook("reference").commands()
    for name, command in make_commands().items():
        part = page.partition(f"## `rollmill {name}`")[2].partition("\n## ")[0]
        options = {option for option in command.options if option not in ("-h", "--help")}
        assert {option for option in options if not re.search(rf"^\[`{option}[ `]", part, re.MULTILINE)} == set()


def test_every_public_name_is_on_the_page_of_the_api() -> None:
    named = re.findall(r"^::: (\S+)$", _hook("reference").api(), re.MULTILINE)
    assert {name.rpartition(".")[2] for name in named} >= set(rollmill.__all__)
    for path in named:
        module, _, name = path.rpartition(".")
        assert getattr(importlib.import_module(module), name).__doc__


def test_settings_side_by_side_are_those_of_the_presets() -> None:
    table = _hook("reference").presets()
    rows = {cells[0].strip("` "): cells[1:] for cells in (line.strip("|").split(" | ") for line in table.splitlines())}
    assert [cell.strip() for cell in rows["setting"]] == ["ppo", "impala", "dqn", "ddpg", "td3", "sac"]
    assert [cell.strip(" `") for cell in rows["regime"]] == ["async"] * 2 + ["replay"] * 4
    assert "learner.gae_lambda" in rows
    assert "rollout.num_workers" not in rows, "the algorithms have the same value"


def test_links_that_leave_the_documentation_lead_to_pages_of_the_site() -> None:
    links = _hook("links")
    text = "[a](../ARCHITECTURE.md#a-walk) `[b](../c)` [d](metrics.md) [e](../examples/) [f](https://g.h)\n"
    fence = "```\n[not](../README.md)\n```\n"
    expected = "[a](source/ARCHITECTURE.md#a-walk) `[b](../c)` [d](metrics.md) [e](source/examples/index.md) [f](https://g.h)\n"
    assert links.rewrite(text + fence, "index.md") == expected + fence
    assert links.rewrite("[a](docs/replay.md)", "source/ARCHITECTURE.md") == "[a](../replay.md)"
    script = _ROOT / "examples" / "vmpo.py"
    assert links.source_uri(script) == "source/examples/vmpo.py.md"
    assert script.read_text() in links.source_page(script)
    assert "[`vmpo.py`](vmpo.py)" in links.source_page(script.parent)


def test_llms_txt_has_a_line_for_each_page() -> None:
    llms = _hook("llms")
    lines = llms.described((_DOCS / "index.md").read_text(), "index.md")
    assert lines["replay.md"].startswith("how off-policy algorithms collect")
    assert set(_pages()) - lines.keys() == set(), "docs/index.md says of each page what it is about"
    assert llms.first_sentence("# Title\n\n```\ncode\n```\n\nFirst [one](a.md). Second.") == "First one."
    entries = [llms.Entry("", "Home", "index.md", ""), llms.Entry("Guides", "Faults", "faults.md", "What fails.")]
    assert llms.index("N", "D", entries) == (
        "# N\n\n> D\n\n## Start\n\n- [Home](index.md)\n\n## Guides\n\n- [Faults](faults.md): What fails.\n"
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_site_builds_without_a_warning_and_loads_nothing_from_other_hosts(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=500)
    assert (built.returncode, built.stdout + built.stderr) == (0, "")
    pages = {page.relative_to(tmp_path).as_posix(): page.read_text() for page in tmp_path.rglob("*.html")}
    assert {f"{name.removesuffix('.md')}.html" for name in _pages()} <= pages.keys()
    loaded = re.compile(r"<(?:script|link|img|video|iframe)\b[^>]*(?:src|href)=.?https?://")
    assert [name for name, html in pages.items() if loaded.search(html)] == []
    assert "<!-- generated" not in "".join(pages.values())
    assert 'id="learner.clip_range"' in pages["reference/settings.html"]
    assert 'id="rollmill.api.train"' in pages["reference/api.html"]
    assert (tmp_path / "llms.txt").read_text().startswith("# Rollmill")


def _tables(page: Path, mark: str) -> list[tuple[list[str], list[list[str]]]]:
    """The words and the rows of each table after a comment ``<!-- MARK: WORDS -->``."""
    found = re.findall(rf"^<!-- {mark}: (.*) -->\n\n((?:\|.*\n)+)", page.read_text(), re.MULTILINE)
    return [
        (words.split(), [[cell.strip() for cell in row.strip("|\n").split(" | ")] for row in table.splitlines()[2:]])
        for words, table in found
    ]


@pytest.mark.parametrize("page", _ALGORITHMS, ids=lambda page: page.stem)
def test_settings_of_an_algorithms_page_are_those_of_its_preset(page: Path) -> None:
    tables = _tables(page, "settings")
    assert tables or page.stem == "recurrent-dqn"
    for (preset, *algo), rows in tables:
        config: dict[str, Any] = flatten(rollmill.make_config(preset, algo=algo[0] if algo else None))
        values = {key.strip("`"): value.strip("`") for key, value, _ in rows}
        assert {key: format_value(config[key]) for key in values} == values


@pytest.mark.parametrize("page", _ALGORITHMS, ids=lambda page: page.stem)
def test_an_algorithms_page_explains_every_loss_that_it_reports(page: Path) -> None:
    [((algo,), rows)] = _tables(page, "losses")
    regime = "async" if algo in ("ppo", "impala") else "replay"
    reported = [metric for metric in METRICS["Losses"] if regime in metric.regimes]
    if regime == "async":
        names = {m.name for m in reported}
    else:
        names = {m.name for m in reported if "with" not in m.when or algo.upper() in m.when}
    assert {key.strip("`") for key, _, _ in rows} == names


def test_settings_that_pages_name_exist() -> None:
    sections = {key.partition(".")[0] for key in _KEYS if "." in key}
    pattern = re.compile(rf"`((?:{'|'.join(sections)})\.[a-z_]+(?:\.[a-z_]+)?)[`=]")
    mappings = ("env.kwargs.", "learner.reward_weights.", "policy.", "pbt.limits.", "model.entry_encoders.")
    other_code = {"env.agents", "env.step", "pbt.jsonl", "replay.nbytes", "tracking.json"}
    named = {
        key
        for page in _DOCS.rglob("*.md")
        if page.parent.name != "journal"
        for key in pattern.findall(page.read_text())
    }
    assert {key for key in named - _KEYS - other_code if not key.startswith(mappings)} == set()


def test_foreign_names_of_the_page_on_migration_lead_to_settings() -> None:
    rows = re.findall(r"^\| (.*?) \| (.*?) \| .*\|$", (_DOCS / "migration.md").read_text(), re.MULTILINE)
    ours = {key for _, here in rows for key in re.findall(r"`([a-z_.]+)`", here)}
    assert len(ours & _KEYS) > 70
    assert {key for key in ours if key not in _KEYS} <= {"run_dir", "enjoy", "vtrace"}


def _names_of_the_page_on_migration() -> dict[str, list[set[str]]]:
    """Each setting of another library that a table names -> the settings here, once for each row.

    In a row with as many names as settings, each name is that of the setting in the same place. In other rows a name
    may be that of any setting of the row.
    """
    found: dict[str, list[set[str]]] = {}
    for line in (_DOCS / "migration.md").read_text().splitlines():
        cells = line.strip("|").split(" | ")
        names = re.findall(r"`(?:--)?([a-z][a-z0-9_-]*)(?:=[^`]*)?`", cells[0])
        ours = re.findall(r"`([a-z_.]+)`", cells[1]) if len(cells) == 3 else []
        if not ours or " x " in cells[0]:  # A product of settings has no name.
            continue
        for place, name in enumerate(names):
            meant = {ours[place]} if len(names) == len(ours) else set(ours)
            found.setdefault(name.replace("-", "_"), []).append(meant)
    return found


def test_each_foreign_name_of_the_page_on_migration_is_a_setting_here_or_translated() -> None:
    config = Config(env=EnvConfig(name="gym/CartPole-v1"))
    named = _names_of_the_page_on_migration()
    # The start of a run explains the one; a run without a prioritised replay refuses the other, and names this setting.
    assert named.pop("batch_size") == [{"learner.batch_size"}, {"learner.minibatches"}, {"learner.batch_size"}]
    assert named.pop("alpha") == [{"off_policy.temperature"}]
    assert len(named) > 100
    wrong = {}
    for name, rows in named.items():
        try:
            apply(config, {name: 1})
            (told,) = full_keys(config, {name: 1})
        except ValueError as error:
            told = str(error)
        if not all(any(re.search(rf"\b{re.escape(key)}\b", told) for key in meant) for meant in rows):
            wrong[name] = told
    assert wrong == {}
