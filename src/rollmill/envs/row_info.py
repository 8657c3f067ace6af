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
_LARGEST = float(np.finfo(np.float32).max)  # Slots store float32.


class RowInfo:
    """Writes these entries into slots.

    Args:
        terms: Names of the reward terms, in the order of their columns; others are ignored.
        name: The environment's name, for messages.
        agents: Number of agents whose terms :meth:`see` collects; 0 if each row gives all terms.
    """

    def __init__(self, terms: Sequence[str] = (), name: str = "environment", agents: int = 0) -> None:
        self._terms = tuple(terms)
        self._name = name
        self._has_seen = False
        self._agents = agents
        # What agents have given until then, and those that have been told something after an action of their own.
        self._found: dict[str, None] | None = None
        self._told: set[int] = set()

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

    def see(self, infos: Mapping[int, Any], actions: Sequence[int] | Array, *, is_over: bool) -> None:
        """Collect the terms that agents give, and check them once all agents can have given theirs.

        That is when each agent has been told something after an action of its own (where agents act in turn, a step
        tells only the next one, and nothing before its first action), or when the first episode is over.

        Args:
            infos: Agent -> what it was told with a step.
            actions: For each agent, how often it has acted in the episode.
            is_over: Whether the episode is over for all agents.

        Raises:
            InvalidReward: Terms that have weights are missing.
        """
        if self._has_seen or not self._terms:
            return
        for agent, info in infos.items():
            if not info:
                continue
            if isinstance(terms := info.get(REWARD_TERMS), Mapping):
                self._found = {**(self._found or {}), **dict.fromkeys(terms)}
            if actions[agent]:
                self._told.add(agent)
        if is_over or len(self._told) == self._agents:
            self._check_names(self._found)

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
            if not all(abs(value) <= _LARGEST for value in values):
                values = [self._number(given.get(term, 0.0), f"info['reward_terms'][{term!r}]") for term in self._terms]
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
        if values.dtype.kind in "biuf" and (np.abs(values[rows].astype(np.float64)) <= _LARGEST).all():
            np.copyto(into, values, where=rows, casting="unsafe")
            return
        for row in np.flatnonzero(rows).tolist():
            into[row] = self._number(values[row], where)

    def _given(self, info: Mapping[str, Any]) -> Any:
        """Return the terms; those of a row that gives all of them are checked once."""
        given = info.get(REWARD_TERMS)
        if given is not None and not isinstance(given, Mapping):
            raise InvalidReward(
                f"{self._name} gave info['reward_terms'] of type {type(given).__name__}: give a dict of numbers"
            )
        if not (self._has_seen or self._agents):
            self._check_names(given)
        return given

    def _check_names(self, given: Iterable[str] | None) -> None:
        """Check that the terms that have weights exist, so that no name is a silent zero."""
        self._has_seen = True
        when = "after the first actions of its agents" if self._agents else "in its first step"
        if given is None and self._terms:
            raise InvalidReward(
                f"{self._name} gives no info['reward_terms'] {when}, but learner.reward_weights has weights for "
                f"{', '.join(self._terms)}: give a dict with these numbers, or leave out the weights"
            )
        names = list(given or ())
        if missing := [term for term in self._terms if term not in names]:
            known = ", ".join(repr(name) for name in names if not str(name).startswith("_"))
            raise InvalidReward(
                f"{self._name} gives no reward term {', '.join(map(repr, missing))}, which learner.reward_weights has "
                f"a weight for; it gives {known or 'none'}, and must give all of them {when}: give 0.0 for a term that "
                "is no part of its reward, as each of several tasks must, or leave out the weight"
            )

    def _number(self, value: Any, where: str) -> float:
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = np.nan
        if not abs(number) <= _LARGEST:
            raise InvalidReward(f"{self._name} gave {where} = {value!r}: give a finite number that fits float32")
        return number
