"""Pages that are made of the code: ``<!-- generated: NAME -->`` in a page stands for what a function here returns.

So every setting, every command and every public name is on its page.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

    from rollmill.settings.option_list import Option

_MARK = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)
_ROLE = re.compile(r":(?:py:)?[a-z]+:`~?([^`]+)`")
_DOUBLE = re.compile(r"``([^`]+)``")
_GENERAL: Final = "The run"
_SECTIONS: Final = {
    "env": "The environment.",
    "env.atari": "Atari games (`atari/GAME`).",
    "env.vizdoom": "VizDoom scenarios (`vizdoom/SCENARIO`).",
    "env.dmlab": "Levels of DeepMind Lab (`dmlab/LEVEL`).",
    "model": "The network.",
    "learner": "The learner: optimiser, computing, and the algorithm where it is on-policy.",
    "off_policy": "Off-policy algorithms.",
    "replay": "The replay, in the replay regime.",
    "inference": "Policy workers.",
    "rollout": "Rollout workers.",
    "checkpoint": "Checkpoints.",
    "placement": "Cores and niceness of the processes.",
    "distributed": "Several ranks.",
    "population": "Policies, guests and past selves ([populations](../populations.md)).",
    "pbt": "[Population-based training](../pbt.md), with `population.pbt=true`.",
}
_MEMBERS: Final = {
    "Train and use": ("train", "Run", "make_config", "load", "evaluate", "watch", "tournament", "tune", "plot_runs"),
    "Callbacks": ("Callback", "LiveRun"),
}
_OTHERS: Final = {
    "Agents and metrics": ("rollmill.evaluation.agent.Agent", "rollmill.reporting.metrics.read_metrics"),
    "For algorithms of your own": (
        "rollmill.algorithms.base.Algorithm",
        "rollmill.algorithms.base.OffPolicyAlgorithm",
        "rollmill.algorithms.base.Loss",
        "rollmill.algorithms.base.Objective",
        "rollmill.algorithms.on_policy.OnPolicyAlgorithm",
        "rollmill.algorithms.batches.OnPolicyBatch",
        "rollmill.algorithms.batches.TransitionBatch",
        "rollmill.algorithms.batches.SequenceBatch",
    ),
    "Without the rest of Rollmill": ("rollmill.replay.PrioritizedReplay", "rollmill.ring.Queue"),
}


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace the marks of a page."""
    return _MARK.sub(lambda mark: GENERATORS[mark[1]](), markdown)


def settings() -> str:
    """Return all settings, by section."""
    from rollmill.settings.config import Config
    from rollmill.settings.option_list import list_options

    sections: dict[str, list[Option]] = {_GENERAL: []}
    for option in list_options(Config):
        if option.key != "preset":  # An argument of its own.
            sections.setdefault(option.key.rpartition(".")[0] or _GENERAL, []).append(option)
    parts = []
    for title, options in sections.items():
        heading = f"## {title}" if title == _GENERAL else f"## `{title}`"
        entries = "\n\n".join(map(_setting, options))
        parts.append("\n\n".join(filter(None, (heading, _SECTIONS.get(title, ""), entries))))
    return "\n\n".join(parts)


def _setting(option: Option) -> str:
    facts = [
        _values(option.type, option.allowed),
        f"default `{option.default}`" if option.default else "empty by default",
    ]
    facts += [f"with `{option.members}`"] if option.members else []
    return _entry(option.key, option.key, [", ".join(map(_escaped, facts)), to_markdown(option.doc)])


def _values(kind: str, allowed: str) -> str:
    """The values of a setting, in words: its type, in which what its rule allows takes the place of a general word."""
    general = {"an integer": "an integer of ", "a number": "a finite number", "text": "a name"}
    for word, rule in general.items():
        if allowed.startswith(rule) and word in kind:
            return kind.replace(word, allowed, 1)
    return f"{kind}: {allowed}" if allowed else kind


def commands() -> str:
    """Return all commands with their options."""
    from rollmill.cli.program import make_commands

    parts = []
    for name, command in make_commands().items():
        parser = command.parser
        summary = to_markdown((parser.description or "").replace("\n\n", "\0").replace("\n", " ").replace("\0", "\n\n"))
        usage = f"~~~\n{(parser.usage or '').strip()}\n~~~"
        formatter = parser._get_formatter()
        entries = [
            _entry(
                f"{name}-{_words(action)[0].strip('-').lower()}", _shown(action), [_escaped(_help(formatter, action))]
            )
            for action in parser._actions
            if action.help != argparse.SUPPRESS and "-h" not in action.option_strings
        ]
        _, _, examples = (parser.epilog or "").partition("examples:\n")
        shown = "\n".join(line.strip() for line in examples.splitlines())
        parts += [f"## `rollmill {name}`", summary, usage, *entries, f"Examples:\n\n~~~\n{shown}\n~~~"]
    return "\n\n".join(parts)


def _words(action: argparse.Action) -> list[str]:
    return list(action.option_strings) or [str(action.metavar or action.dest)]


def _shown(action: argparse.Action) -> str:
    value = "" if action.nargs == 0 or not action.option_strings else f" {action.metavar or action.dest.upper()}"
    return f"{', '.join(_words(action))}{value}"


def _help(formatter: argparse.HelpFormatter, action: argparse.Action) -> str:
    return formatter._expand_help(action) if action.help else ""


def api() -> str:
    """Return all public names of the package, and those of other modules that programs use."""
    import rollmill

    groups = {title: [_home(name) for name in names] for title, names in _MEMBERS.items()}
    named = {name for names in _MEMBERS.values() for name in names}
    others = [name for name in rollmill.__all__ if name not in named]
    groups["Train and use"] += [_home(name) for name in others if not name.startswith("register_")]
    groups["Registration"] = [_home(name) for name in others if name.startswith("register_")]
    groups |= {title: [(path, path) for path in paths] for title, paths in _OTHERS.items()}
    return "\n\n".join(
        f"## {title}\n\n" + "\n\n".join(_object(*paths) for paths in members) for title, members in groups.items()
    )


def _home(name: str) -> tuple[str, str]:
    """Where a public name is defined, and how it is imported."""
    import rollmill

    return f"{rollmill._HOME[name]}.{name}", f"rollmill.{name}"


def _object(path: str, heading: str) -> str:
    """What mkdocstrings replaces by the documentation of an object."""
    return f"::: {path}\n    options:\n      heading: {heading}\n      toc_label: {heading.rpartition('.')[2]}"


def presets() -> str:
    """Return the values of the built-in algorithms for an environment without a preset, one column for each."""
    from rollmill.api import make_config
    from rollmill.settings.option_values import format_value
    from rollmill.settings.options import flatten

    columns = {name: flatten(make_config("gym/Acrobot-v1", algo=name)) for name in ("ppo", "impala", "dqn")}
    columns |= {name: flatten(make_config("gym/Pendulum-v1", algo=name)) for name in ("ddpg", "td3", "sac")}
    keys = [key for key in dict.fromkeys(k for c in columns.values() for k in c) if _differs(key, columns)]
    head = ["setting", *columns]
    rows = [
        [f"`{key}`", *(f"`{format_value(column[key])}`" if key in column else "" for column in columns.values())]
        for key in keys
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def _differs(key: str, columns: Mapping[str, Mapping[str, object]]) -> bool:
    values = [column.get(key) for column in columns.values()]
    return key.partition(".")[0] != "env" and key != "preset" and any(value != values[0] for value in values)


GENERATORS: Final[Mapping[str, Callable[[], str]]] = {
    "settings": settings,
    "commands": commands,
    "api": api,
    "presets": presets,
}


def to_markdown(text: str) -> str:
    """Return a docstring's text as Markdown: its code in single backticks, and roles as code."""
    text = _ROLE.sub(lambda role: f"`{role[1]}`", text)
    return _escaped(_DOUBLE.sub(r"`\1`", text))


def _escaped(text: str) -> str:
    """Escape what Markdown reads as markup, outside of code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if index % 2 else re.sub(r"([<*\[\]_])", r"\\\1", part) for index, part in enumerate(parts))


def _entry(anchor: str, shown: str, paragraphs: Iterable[str]) -> str:
    """An entry of a list of definitions, with an anchor."""
    body = "\n\n    ".join(filter(None, paragraphs))
    return f"[`{shown}`](#{anchor}){{ #{anchor} }}\n:   {body}"
