"""Signs in a run's own metrics that it does not learn, each said once, with advice.

Every rule looks at the rows of ``metrics.jsonl`` alone (docs/metrics.md), so it holds for any environment, and costs
nothing while training. The thresholds are chosen far from what PPO shows where it learns; their false alarms have not
been counted yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from rollmill.reporting.metrics import Record

# Rows that a rule looks back on: a single row may be an accident.
_WINDOW = 5
# Episodes, or the share of the run, after which returns can be judged.
_ENOUGH_EPISODES, _ENOUGH_OF_RUN = 100, 0.1
# Agent steps of one row, or the share of the run, after which an episode should have ended.
_LONG_EPISODE, _HALF = 5_000, 0.5
# Nats between the policy that acted and the one that learns. PPO's own stop rules are at 0.01 to 0.05.
_FAR_KL = 0.5
# The value loss over its median in the first rows.
_DIVERGED = 100.0
_AT_BOUND = 0.95

# What every row of this version has.
_REQUIRED = ("agent_steps", "episodes")
# A row without what is null or no number.
_Numbers = Mapping[str, float]


class Health:
    """Looks at each row of a run.

    Args:
        total_steps: Agent steps of the whole run.
        num_rows: Agents of all environments.
        least_entropy: Of a policy's first entropy, the one below which it has collapsed, both in nats; None for a
            policy whose entropy has a target of its own.
        has_reward_terms: Whether the policy learns from more than the rewards that returns consist of.
        earlier: Rows that a resumed run has written before; nothing is said of them again.
    """

    def __init__(
        self,
        total_steps: int,
        num_rows: int,
        *,
        least_entropy: Callable[[float], float] | None = None,
        has_reward_terms: bool = False,
        earlier: Sequence[Record] = (),
    ) -> None:
        self._total_steps = total_steps
        self._num_rows = num_rows
        self._least_entropy = least_entropy
        self._recent: deque[_Numbers] = deque(maxlen=_WINDOW)
        self._first_values: list[float] = []
        self._first_entropy: float | None = None
        self._first_return: float | None = None
        self._last_return: float | None = None
        self._returns_differed = False
        self._rules: dict[str, Callable[[_Numbers], str | None]] = {
            "episodes": self._episodes,
            "returns": self._returns,
            "entropy": self._entropy,
            "kl": self._kl,
            "value": self._value,
            "bounds": self._bounds,
        }
        if has_reward_terms:
            del self._rules["returns"], self._rules["entropy"]
        for row in earlier:
            if all(isinstance(row.get(key), int | float) for key in _REQUIRED):
                self.warnings(row)

    def warnings(self, row: Record) -> Sequence[str]:
        """What this row and those before it show for the first time, in lines for people."""
        numbers = {key: float(value) for key, value in row.items() if isinstance(value, int | float)}
        self._remember(numbers)
        found = []
        for name, rule in list(self._rules.items()):
            if (text := rule(numbers)) is not None:
                del self._rules[name]
                found.append(f"warning at {numbers['agent_steps']:,.0f} agent steps: {text}")
        return found

    def _remember(self, row: _Numbers) -> None:
        self._recent.append(row)
        if (value := row.get("loss/value")) is not None and len(self._first_values) < _WINDOW:
            self._first_values.append(value)
        if self._first_entropy is None:
            self._first_entropy = row.get("loss/entropy")
        if self._first_return is None and row["episodes"] >= _ENOUGH_EPISODES:
            self._first_return = row.get("episode_return")
        self._returns_differed |= bool(row.get("episode_return_std"))
        if (value := row.get("episode_return")) is not None:
            self._returns_differed |= self._last_return not in (None, value)
            self._last_return = value

    def _share(self, row: _Numbers) -> float:
        return row["agent_steps"] / self._total_steps

    def _all(self, key: str, holds: Callable[[float], bool]) -> bool:
        """Whether something holds for this key in all of the last rows."""
        values = [row.get(key) for row in self._recent]
        return len(values) == _WINDOW and all(value is not None and holds(value) for value in values)

    def _episodes(self, row: _Numbers) -> str | None:
        is_long = row["agent_steps"] / self._num_rows >= _LONG_EPISODE or self._share(row) >= _HALF
        if row["episodes"] or self._share(row) < _ENOUGH_OF_RUN or not is_long:
            return None
        return (
            "no episode has ended yet, so there are no returns to judge the run by. If episodes should be shorter, "
            "give env.max_episode_steps."
        )

    def _returns(self, row: _Numbers) -> str | None:
        if (
            self._returns_differed
            or row["episodes"] < _ENOUGH_EPISODES
            or self._share(row) < _ENOUGH_OF_RUN
            or row.get("episode_return") is None
        ):
            return None
        return (
            f"in every row the last 100 episodes had the same return, {row['episode_return']:g}: there is nothing to "
            "learn from yet. Rewards that come earlier or for partial success help most; more environments (num_envs), "
            "longer episodes (env.max_episode_steps) or a larger learner.entropy_coef make a first success likelier."
        )

    def _entropy(self, row: _Numbers) -> str | None:
        first, best = self._first_entropy, self._first_return
        if self._least_entropy is None or first is None or best is None or row.get("episode_return") is None:
            return None
        least = self._least_entropy(first)
        if row["episode_return"] > best or not self._all("loss/entropy", lambda value: value < least):
            return None
        return (
            f"the policy's entropy fell from {first:.2g} to {row['loss/entropy']:.2g} nats, but returns have not risen "
            f"({row['episode_return']:g}, {best:g} at first): it no longer explores. Try a larger "
            "learner.entropy_coef or entropy_floor, or a lower learner.learning_rate."
        )

    def _kl(self, row: _Numbers) -> str | None:
        if not self._all("loss/approx_kl", lambda value: value > _FAR_KL):
            return None
        return (
            f"the policy moves {row['loss/approx_kl']:.2g} nats from the one that acted in an update (usual: below "
            "0.05). Try a lower learner.learning_rate, fewer learner.epochs or schedule=kl."
        )

    def _value(self, row: _Numbers) -> str | None:
        if len(self._first_values) < _WINDOW:
            return None
        usual = max(median(self._first_values), 1e-3)
        if not self._all("loss/value", lambda value: value > _DIVERGED * usual):
            return None
        return (
            f"the value loss is {row['loss/value']:.3g}, {row['loss/value'] / usual:,.0f} times what it was at first. "
            "Try model.normalise_returns=true, a lower learner.learning_rate or a smaller learner.reward_scale."
        )

    def _bounds(self, row: _Numbers) -> str | None:
        if not self._all("actions_at_bound", lambda value: value > _AT_BOUND):
            return None
        return (
            f"{row['actions_at_bound']:.0%} of the actions' numbers are at a bound of the action space, so the policy "
            "chooses among extremes only. Bounds that fit the task, a smaller model.initial_log_std, or "
            "model.squash_actions=true may help."
        )
