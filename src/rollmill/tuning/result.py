"""The result of tuning, as text, as JSON and as files."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollmill.extras import missing_modules
from rollmill.runtime.signed_files import signed
from rollmill.storage.whole_files import write_whole
from rollmill.tuning.curves import Balance, Curves
from rollmill.tuning.explain import Change, describe_allocation, draw
from rollmill.tuning.model import Allocation, StageCosts
from rollmill.tuning.search import Candidate
from rollmill.tuning.settings import SettingsFileError

TUNED_FILE = "tuned.json"
# Of what the curves or the model say: what is measured and near it needs no explanation.
_NEAR = 0.9
# A change that gains less is not worth a sentence.
_WORTH_SAYING = 0.05


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}" + ("" if number == 1 else "s")


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """The chosen settings, and the reasons.

    Attributes:
        settings: By dotted key, what the user gave included: ``train(preset, **tuning.settings)`` runs with them.
        allocation: The chosen one.
        preset: The one without tuning.
        steps_per_second: Agent steps a second of the chosen one: measured, or by the given curves.
        gain: Measured speed over that of the preset's own allocation, in the same turns; None where none was.
        limit: What limits the speed, in a sentence.
        predicted: Agent steps a second by the model: of the solution, where there is one; None where curves were given.
        changes: What single changes would bring.
        curves: Both sides' throughput.
        solution: Of PAL's equation 5 on them; None where collecting and learning take turns (lockstep, lag 0).
        update_interval: Agent steps for each SGD step.
        costs: The stages', as fitted; None where curves were given.
        tried: Allocations that were run, with their agent steps a second over the preset's.
        measured: (actors' cores, learner's cores, agent steps a second) of the joint runs.
        seconds: It took.
        name: What was tuned.
        notes: Further information about the figures.
        bounds: The speed that each station lets through; empty where curves were given.
    """

    settings: dict[str, Any]
    allocation: Allocation
    preset: Allocation
    steps_per_second: float
    gain: float | None
    limit: str
    predicted: float | None
    changes: tuple[Change, ...]
    curves: Curves
    solution: Balance | None
    update_interval: float
    costs: StageCosts | None
    tried: tuple[Candidate, ...]
    measured: tuple[tuple[float, float, float], ...]
    seconds: float
    name: str
    notes: tuple[str, ...] = ()
    bounds: str = ""

    def summary(self) -> str:
        """What a user needs to know, one sentence a fact, each on a line."""
        a = self.allocation
        lines = [
            f"{self.name} on {_count(self.curves.cores, 'core')}: the fastest settings found are "
            f"{_count(a.rollout_workers, 'rollout worker')}, {_count(a.policy_workers, 'policy worker')}, "
            f"{_count(a.learner_cores, 'core')} for learning, and {_count(a.num_envs, 'environment')} in "
            f"{_count(a.num_groups, 'group')}."
        ]
        if self.predicted is None:
            lines.append(f"The curves predict {self.steps_per_second:,.0f} agent steps/s; nothing was measured.")
        elif not self.measured_here:
            lines.append(
                f"The model predicts {self.steps_per_second:,.0f} agent steps/s there, from what was measured on this "
                "machine."
            )
        else:
            lines += self._measured_sentences(self.predicted)
        lines.append(self.limit)
        best = max(self.changes, key=lambda change: change.gain, default=None)
        if best is not None and best.gain >= _WORTH_SAYING:
            lines.append(f"By the model, {best.what} would make it {best.gain:.0%} faster.")
        lines += [f"Note: {note}." for note in self.notes]
        return "\n".join(lines)

    @property
    def measured_here(self) -> bool:
        """Whether ``steps_per_second`` was measured, on a machine with these cores."""
        return self.gain is not None

    def _measured_sentences(self, predicted: float) -> list[str]:
        measured = self.steps_per_second
        if measured < _NEAR * predicted:
            speed = (
                f"The model predicts {predicted:,.0f} agent steps/s; {measured:,.0f} were measured, because processes "
                "also wait for each other and for a free core."
            )
        else:
            speed = f"{measured:,.0f} agent steps/s were measured; the model predicts {predicted:,.0f}."
        if self.allocation == self.preset:
            return [speed, "Nothing that was tried is clearly faster than the preset's own settings."]
        return [speed, f"That is {self.gain:.2f} times the speed of the preset's own settings."]

    def describe(self) -> str:
        """The summary, and below it equations, candidates and changes."""
        return f"{self.summary()}\n\n{self._details()}"

    def _details(self) -> str:
        lines = [
            f"{self.name}, {self.curves.cores} cores: {describe_allocation(self.allocation)}",
            f"{self.steps_per_second:,.0f} agent steps/s"
            + ("" if self.gain is None else f", {self.gain:.2f} times the preset's own allocation")
            + f" (tuned in {self.seconds:.0f} s)",
            *([self.bounds] if self.bounds else []),
            self._describe_solution(),
            *self.notes,
        ]
        if self.changes:
            lines.append("what single changes would bring, by the model:")
            lines += [f"  {change.what:<44}{change.gain:+.0%}" for change in self.changes]
        if self.tried:
            lines.append("tried, over the preset's own:")
            lines += [f"  {c.steps_per_second:.2f}  {describe_allocation(c.allocation)}" for c in self.tried]
        changed = ", ".join(f"{key}={value}" for key, value in self.settings.items())
        return "\n".join([*lines, f"settings: {changed}"])

    def _describe_solution(self) -> str:
        if self.solution is None:
            return "collecting and learning take turns on all cores, so there is nothing to balance between them"
        x_a, x_l = self.solution.actor_cores, self.solution.learner_cores
        collected, learned = self.curves.actors(x_a), self.update_interval * self.curves.learners(x_l)
        text = (
            f"by the curves actors {x_a:.2f} cores, learner {x_l:.2f} cores: f_a(x_a) = {collected:,.0f}, u f_l(x_l) = "
            f"{learned:,.0f} agent steps/s, u = {self.update_interval:g}"
        )
        measured = self.steps_per_second / min(collected, learned)
        if measured < _NEAR and self.predicted is not None:
            seen = "measured were" if self.measured_here else "the model predicts"
            text += f"; {seen} {measured:.2f} of them: processes also wait for one another and for a core"
        return text

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.name,
            "settings": self.settings,
            "steps_per_second": self.steps_per_second,
            "gain": self.gain,
            "limit": self.limit,
            "bounds": self.bounds,
            "notes": list(self.notes),
            "changes": {change.what: change.gain for change in self.changes},
            "curves": self.curves.to_json(),
            "solution": None if self.solution is None else self.solution._asdict(),
            "tried": [{"over_preset": c.steps_per_second, **c.allocation._asdict()} for c in self.tried],
            "seconds": self.seconds,
        }

    def write(self, directory: Path | str) -> Path:
        """Leaves ``tuned.json``, ``curves.json``, ``tuning.txt`` and ``tuning.png``; returns the first one's path.

        Without matplotlib there is no picture.

        Raises:
            SettingsFileError: One cannot be written; the message has the summary of what was found.
        """
        directory = Path(directory)
        contents = {
            TUNED_FILE: json.dumps(signed(self.settings), indent=2),
            "curves.json": json.dumps(self.curves.to_json(), indent=2),
            "tuning.txt": self.describe(),
        }
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for name, content in contents.items():
                encoded = f"{content}\n".encode(errors="backslashreplace")
                write_whole(directory / name, encoded, directory / f".writing-{name}-{os.getpid()}")
            if not missing_modules("plots"):
                draw(
                    self.curves,
                    self.update_interval,
                    directory / "tuning.png",
                    title=self.name,
                    solution=self.solution,
                    measured=self.measured,
                )
        except OSError as error:
            raise SettingsFileError(
                f"the result cannot be written to {directory} ({error.strerror}); it was:\n{self.summary()}"
            ) from error
        return directory / TUNED_FILE
