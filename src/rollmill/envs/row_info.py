"""What environments give in ``info`` for each step of a row: reward terms, and the objective of an episode.

``info["reward_terms"]`` has named numbers, which are stored for each step; a learner adds them up with its policy's own
weights (``learner.reward_weights``). ``info["true_objective"]``, at the end of an episode, is what the episode was
worth by the task's own measure, for population-based training.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rollmill.envs.errors import InvalidReward
from rollmill.envs.views import Array, OutcomeView

REWARD_TERMS, TRUE_OBJECTIVE = "reward_terms", "true_objective"
"""The entries of ``info``."""


class RowInfo:
    """Writes these entries into slots.

    Args:
        terms: Names of the reward terms, in the order of their columns; others are ignored.
        name: The environment's name, for messages.
    """

    def __init__(self, terms: Sequence[str] = (), name: str = "environment") -> None:
        self._terms = tuple(terms)
        self._name = name
        self._has_seen = False

    @staticmethod
    def is_asked(outcome: OutcomeView) -> bool:
        """Whether slots have a place for any of these entries."""
        return outcome.reward_terms is not None or outcome.episode_objective is not None

    @staticmethod
    def clear(outcome: OutcomeView, rows: Any = slice(None)) -> None:
        """Write that nothing was given."""
        if outcome.reward_terms is not None:
            outcome.reward_terms[rows] = 0.0
        if outcome.episode_objective is not None:
            outcome.episode_objective[rows] = np.nan

    def resume(self) -> None:
        """Expect no terms in the next step: the first one was before a snapshot."""
        self._has_seen = True

    def see(self, infos: Iterable[Mapping[str, Any]]) -> None:
        """Check the terms that the agents of an environment give together in the first step.

        Raises:
            InvalidReward: Terms that have weights are missing.
        """
        if self._has_seen or not self._terms:
            return
        told = [info for info in infos if info]
        given = [info[REWARD_TERMS] for info in told if REWARD_TERMS in info]
        merged = {name: value for terms in given if isinstance(terms, Mapping) for name, value in terms.items()}
        if told:
            self._given({REWARD_TERMS: merged} if given else {})

    def write(self, row: int, info: Mapping[str, Any], outcome: OutcomeView) -> None:
        """Write the entries of one row.

        Raises:
            InvalidReward: An entry is no finite number, or terms that have weights are missing.
        """
        if outcome.reward_terms is not None and (given := self._given(info)) is not None:
            try:
                values = [float(given.get(term, 0.0)) for term in self._terms]
            except (TypeError, ValueError):
                values = [math.nan]
            if not math.isfinite(sum(values)):
                values = [self._number(given[term], f"info['reward_terms'][{term!r}]") for term in self._terms]
            outcome.reward_terms[row] = values
        if outcome.episode_objective is not None and TRUE_OBJECTIVE in info:
            outcome.episode_objective[row] = self._number(info[TRUE_OBJECTIVE], "info['true_objective']")

    def write_rows(self, info: Mapping[str, Any], outcome: OutcomeView, *, only: Array | None = None) -> None:
        """Write the entries of a vector environment.

        Args:
            info: Arrays ``[B]`` for both entries; ``_NAME``, bool ``[B]``, says which rows have one.
            outcome: Where to.
            only: bool ``[B]``, which rows to write; None writes all.

        Raises:
            InvalidReward: As :meth:`write`.
        """
        if outcome.reward_terms is not None and (given := self._given(info)) is not None:
            for column, term in enumerate(self._terms):
                if term in given:
                    where = f"info['reward_terms'][{term!r}]"
                    self._write_column(given, term, outcome.reward_terms[:, column], where, only)
        if outcome.episode_objective is not None and TRUE_OBJECTIVE in info:
            self._write_column(info, TRUE_OBJECTIVE, outcome.episode_objective, "info['true_objective']", only)

    def _write_column(self, info: Mapping[str, Any], name: str, into: Array, where: str, only: Array | None) -> None:
        values, given = np.asarray(info[name]), info.get(f"_{name}")
        rows = np.ones(len(into), bool) if given is None else np.asarray(given, bool)
        rows = rows if only is None else rows & only
        if values.shape != into.shape or rows.shape != into.shape:
            raise InvalidReward(f"{self._name} gave {where} of shape {values.shape}: give one number for each row")
        if values.dtype.kind in "biuf" and np.isfinite(values[rows]).all():
            np.copyto(into, values, where=rows, casting="unsafe")
            return
        for row in np.flatnonzero(rows).tolist():
            into[row] = self._number(values[row], where)

    def _given(self, info: Mapping[str, Any]) -> Any:
        """Return the terms; checks once that those that have weights exist, so that no name is a silent zero."""
        given = info.get(REWARD_TERMS)
        if given is None and (self._has_seen or not self._terms):
            return None
        if given is None:
            raise InvalidReward(
                f"{self._name} gives no info['reward_terms'] in its first step, but learner.reward_weights has weights "
                f"for {', '.join(self._terms)}: give a dict with these numbers, or leave out the weights"
            )
        if not isinstance(given, Mapping):
            raise InvalidReward(
                f"{self._name} gave info['reward_terms'] of type {type(given).__name__}: give a dict of numbers"
            )
        if self._has_seen:
            return given
        self._has_seen = True
        if missing := [term for term in self._terms if term not in given]:
            known = ", ".join(repr(name) for name in given if not str(name).startswith("_"))
            raise InvalidReward(
                f"{self._name} gives no reward term {', '.join(map(repr, missing))}, which learner.reward_weights has "
                f"a weight for; it gives {known or 'none'}, and must give all of them in the first step"
            )
        return given

    def _number(self, value: Any, where: str) -> float:
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = np.nan
        if not np.isfinite(number):
            raise InvalidReward(f"{self._name} gave {where} = {value!r}: give a finite number")
        return number
