"""The results as a table in Markdown."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from untuned.runs import RANDOM_SEEDS, Job, Places, read_result
from untuned.tasks import RANDOM, Task
from untuned.verdicts import MARGIN, WIDE, Interval, Verdict, compare, mean_interval

_ZOO = Path(__file__).resolve().parents[1] / "results" / "rl_baselines3_zoo.json"
_HEADER = """\
| environment | agent steps | Rollmill | Stable-Baselines3 | difference | verdict | random | zoo, tuned |
|---|---:|---|---|---|---|---:|---|"""


@dataclass
class _Counts:
    """What the rows of a table came to."""

    verdicts: Counter[str] = field(default_factory=Counter)
    wide: int = 0
    neither: int = 0
    incomplete: int = 0

    def add(self, verdict: Verdict) -> None:
        self.verdicts[verdict.word] += 1
        self.wide += verdict.is_wide
        self.neither += verdict.neither_learned

    def describe(self) -> str:
        rows = sum(self.verdicts.values())
        words = ", ".join(f"{word} {self.verdicts[word]}" for word in ("better", "equal", "worse"))
        text = f"Rows with both libraries and all seeds: {rows} ({words})."
        if self.neither or self.wide:
            text += f" Of the equal ones: neither learned {self.neither}, undecided {self.wide}."
        if self.incomplete:
            text += f" Incomplete rows, which are not counted: {self.incomplete}."
        return text


def table(tasks: Sequence[Task], places: Places, seeds: Sequence[int]) -> str:
    """All tasks, on-policy and off-policy apart.

    Args:
        tasks: Its rows.
        places: Where the results are.
        seeds: Which training seeds are wanted; a row that lacks some says how many it has, and is not counted.
    """
    zoo = json.loads(_ZOO.read_text())
    on_policy = [task for task in tasks if task.algorithm == "ppo"]
    off_policy = [task for task in tasks if task.algorithm != "ppo"]
    parts: list[str] = []
    for title, some in (("On-policy", on_policy), ("Off-policy", off_policy)):
        if not some:
            continue
        counts = _Counts()
        rows = [_row(task, places, seeds, zoo["rows"], counts) for task in some]
        parts += [f"### {title}", counts.describe(), "\n".join([_HEADER, *rows])]
    parts += [_legend(seeds, zoo), _provenance(tasks, places, seeds)]
    return "\n\n".join(part for part in parts if part)


def _results(task: Task, library: str, places: Places, seeds: Iterable[int]) -> list[dict[str, Any]]:
    found = (read_result(places, Job(task=task, library=library, seed=seed)) for seed in seeds)
    return [result for result in found if result is not None]


def _row(task: Task, places: Places, seeds: Sequence[int], zoo: list[dict[str, Any]], counts: _Counts) -> str:
    ours, theirs = (
        [result["returns"] for result in _results(task, library, places, seeds)] for library in ("rollmill", "sb3")
    )
    random = [result["returns"] for result in _results(task, RANDOM, places, RANDOM_SEEDS)]
    difference, word = "", ""
    if ours and theirs and random:
        verdict = compare(ours, theirs, _baseline(task, random))
        difference = _cell(verdict.difference, sign="+")
        word = _word(verdict)
        if len(ours) == len(theirs) == len(seeds):
            counts.add(verdict)
        else:
            word = f"({word})"
            counts.incomplete += 1
    else:
        counts.incomplete += 1
    name = task.env.partition("/")[2] + (f", {task.algorithm.upper()}" if task.algorithm != "ppo" else "")
    cells = (
        name + (r" \*" if task.named else ""),
        f"{task.steps:,}",
        _mean_cell(ours, seeds),
        _mean_cell(theirs, seeds),
        difference,
        word,
        _number(mean_interval(random).value) if random else "",
        _zoo_cell(task, zoo),
    )
    return f"| {' | '.join(cells)} |"


def _baseline(task: Task, random: list[list[float]]) -> list[list[float]]:
    """Random play, or letting the time pass where that gets more."""
    if task.idle is not None and task.idle > mean_interval(random).value:
        return [[task.idle]]
    return random


def _word(verdict: Verdict) -> str:
    if verdict.neither_learned:
        return "equal: neither learned"
    if verdict.is_wide:
        return "equal: undecided"
    return f"**{verdict.word}**" if verdict.word != "equal" else "equal"


def _mean_cell(returns: list[list[float]], seeds: Sequence[int]) -> str:
    if not returns:
        return "not run"
    short = f" ({len(returns)} of {len(seeds)} seeds)" if len(returns) < len(seeds) else ""
    return _cell(mean_interval(returns)) + short


def _cell(interval: Interval, sign: str = "") -> str:
    return f"{_number(interval.value, sign)} [{_number(interval.low, sign)}, {_number(interval.high, sign)}]"


def _number(value: float, sign: str = "") -> str:
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 10 else 2
    return f"{round(value, digits) + 0.0:{sign},.{digits}f}"  # + 0.0: no "-0.00"


def _zoo_cell(task: Task, zoo: list[dict[str, Any]]) -> str:
    for row in zoo:
        if row["env"] == task.zoo and row["algorithm"] == task.algorithm:
            return f"{_number(row['mean'])} ({row['steps']})"
    return ""


def _legend(seeds: Sequence[int], zoo: dict[str, Any]) -> str:
    return f"""\
Mean return over training seeds {", ".join(map(str, seeds))} with its 95 % bootstrap interval [low, high].

- "better" and "worse": the interval of the difference excludes 0, and the difference is more than {MARGIN:.0%} of the
  better library's gain over random play (or over standing still, where that gets more). "equal": all other cases.
- "undecided": equal, but the interval reaches beyond {WIDE:.0%} of that gain. "neither learned": equal, without gain.
- In brackets: the verdict of a row that lacks seeds.
- \\*: Rollmill has settings for this environment and algorithm.
- "zoo, tuned": published by {zoo["source"]} (commit {zoo["commit"][:7]}), with hyperparameters
  tuned for each environment, one seed, the agent steps in brackets, and MuJoCo v3 or LunarLander v2. It is no part of
  the verdict."""


def _provenance(tasks: Sequence[Task], places: Places, seeds: Sequence[int]) -> str:
    """Which versions and machines the figures are from."""
    lines: list[str] = []
    for library, title in (("rollmill", "Rollmill"), ("sb3", "Stable-Baselines3")):
        found = [result for task in tasks for result in _results(task, library, places, seeds)]
        if not found:
            continue
        machines = "; ".join(sorted({result["machine"] for result in found}))
        if library == "rollmill":
            versions = "commit " + ", ".join(sorted({str(result["commit"]) for result in found}))
        else:
            versions = ", ".join(sorted({result["versions"]["stable_baselines3"] for result in found}))
        lines.append(f"{title} {versions}: {len(found)} runs on {machines}.")
    return "\n".join(lines)
