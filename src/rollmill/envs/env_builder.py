"""Building of a group's Python environments, and rebuilding of those that fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from rollmill.envs.errors import RollmillEnvError, failures
from rollmill.envs.failures import RestartBudget, failure, log_of_closing, report

_REBUILDS = 10


class EnvBuilder:
    """Builds the environments of one group, within the budget of rebuilds.

    Args:
        make_env: Builds one environment, or one vector of ``num_rows`` environments.
        name: The environment's name, for messages.
        first_index: Index of the group's first environment in the whole run, for messages.
        num_rows: How many environments each call builds.
        on_failure: What to do when an environment raises.
        budget: Budget of rebuilds, shared by the groups of a worker; None gives this group one of its own.

    Attributes:
        failures: Failures followed by a rebuild, with tracebacks; the reader may clear the list.
    """

    def __init__(
        self,
        make_env: Callable[[], Any],
        *,
        name: str,
        first_index: int,
        on_failure: Literal["stop", "restart"],
        budget: RestartBudget | None,
        num_rows: int = 1,
    ) -> None:
        self.failures: list[str] = []
        self._make_env = make_env
        self._name = name
        self._first = first_index
        self._num_rows = num_rows
        self._budget = (budget or RestartBudget(_REBUILDS)) if on_failure == "restart" else None

    def build(self, index: int, step: int = 0) -> Any:
        """Build an environment, again while its constructor raises and rebuilds are left.

        Args:
            index: Which environment of the group, of a vector the first.
            step: Group step, for the message.

        Raises:
            EnvironmentFailure: The constructor raises and no rebuild is left.
        """
        while True:
            try:
                return self._make_env()
            except RollmillEnvError:
                raise
            except failures() as error:
                self._spend(index, "constructor", step, error)

    def rebuild(
        self,
        env: Any,
        index: int,
        where: str,
        step: int,
        error: BaseException,
        start: Callable[[Any], None],
    ) -> Any:
        """Replace an environment that raised.

        Args:
            env: The environment, which is closed.
            index: Which environment of the group, of a vector the first.
            where: What raised: "reset" or "step".
            step: Group step, for the message.
            error: What it raised.
            start: Starts the first episode of a new environment; called again with another one if it raises.

        Returns:
            The new environment.

        Raises:
            EnvironmentFailure: No rebuild is left.
        """
        self._spend(index, where, step, error)
        self.close([env])
        while True:
            env = self.build(index, step)
            try:
                start(env)
            except RollmillEnvError:
                self.close([env])
                raise
            except failures() as again:
                self.close([env])
                self._spend(index, "reset", step, again)
                continue
            return env

    def close(self, envs: list[Any]) -> None:
        """Close every environment, even if closing one raises, which is logged."""
        for env in envs:
            try:
                env.close()
            except failures() as error:
                log_of_closing(self._name, error)

    def _spend(self, index: int, where: str, step: int, error: BaseException) -> None:
        first, last = self._first + index, self._first + index + self._num_rows - 1
        indices: int | str = first if first == last else f"{first}..{last}"
        if self._budget is None or not self._budget.spend():
            raise failure(self._name, indices, where, step, error, self._budget) from error
        which = "environment" if first == last else "environments"
        self.failures.append(report(f"{which} {indices} of {self._name}", where, error))


def seed_of_rebuild(seed: int, rebuilds: int) -> int:
    """The seed of a rebuilt environment, below 2^31: a new one, so that it does not repeat its first episodes.

    Args:
        seed: The environment's first seed.
        rebuilds: How often it has been rebuilt, this time included.
    """
    return int(np.random.SeedSequence([seed, rebuilds]).generate_state(1)[0] >> 1)
