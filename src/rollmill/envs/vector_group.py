"""A group that is one native vector environment, whatever its autoreset mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from rollmill.envs.actions import ActionCodec
from rollmill.envs.checks import RowChecks
from rollmill.envs.errors import RollmillEnvError, UnsupportedSpace, failures
from rollmill.envs.failures import RestartBudget, failure, report
from rollmill.envs.snapshots import put_back, take
from rollmill.envs.spaces import ACTION_MASK, ObservationCodec, action_spec
from rollmill.envs.views import Array, ObservationView, OutcomeView
from rollmill.specs import BoxActions

__all__ = ["VectorGroup", "own_seeds", "seed_array", "seed_none"]

_MOST_HIDDEN_ENDS = 100
# All that decides how a group goes on.
_STATE = (
    "_env",
    "_seeds",
    "_rebuilds",
    "_clock",
    "_masked",
    "_any_masked",
    "_hidden_ends",
    "_lives",
    "_return",
    "_length",
)
_MODES = {"NextStep": "next_step", "SameStep": "same_step", "Disabled": "disabled"}


def own_seeds(env: Any, seeds: Sequence[int]) -> Any:
    """What a Gymnasium vector environment's ``reset`` takes.

    Vectors of separate environments (Sync- and AsyncVectorEnv) take a list of seeds; all others one integer, because
    they may keep a single generator for all their rows.
    """
    if isinstance(getattr(env, "unwrapped", env), (SyncVectorEnv, AsyncVectorEnv)):
        return [int(s) for s in seeds]
    return int(seeds[0])


def seed_array(env: Any, seeds: Sequence[int]) -> Any:
    """One seed for each environment, as ``ale_py.AtariVectorEnv`` takes them (31 bits)."""
    return np.array([int(s) & 0x7FFFFFFF for s in seeds], dtype=np.int64)


def seed_none(env: Any, seeds: Sequence[int]) -> Any:
    """No seed at reset: the constructor has taken them (EnvPool)."""
    return None


class VectorGroup:
    """Steps a ``gymnasium.vector.VectorEnv`` (or an EnvPool) in one call and writes it as :mod:`rollmill.specs` says.

    ======== ===================================================================================================
    NextStep native: the vector's own masked row is ours
    SameStep behind a termination stands the first observation of the next episode, since nothing is bootstrapped from
             a final one; nothing is masked. Behind a truncation stands ``info["final_obs"]`` in a masked row, while
             the environment makes its first step from an observation that nobody saw: that transition is masked (its
             reward counts in ``episode_return``), and the second observation is shown with ``reset`` True
    Disabled ended rows are reset at once with ``options={"reset_mask": ...}``, which makes it SameStep, the final
             observation being what the vector had shown
    ======== ===================================================================================================

    Attributes:
        num_rows: Rows of the group.
        failures: Failures mended so far, each with its traceback (only with ``on_failure="restart"``); whoever reads
            them may clear the list.
    """

    def __init__(
        self,
        make_vector: Callable[[Sequence[int]], Any],
        *,
        seeds: Sequence[int],
        first_index: int = 0,
        name: str = "environment",
        reset_seed: Callable[[Any, Sequence[int]], Any] = own_seeds,
        box: BoxActions = "clip",
        life_key: str | None = None,
        on_failure: Literal["stop", "restart"] = "stop",
        budget: RestartBudget | None = None,
        check_finite: bool = True,
    ) -> None:
        """Build the vector environment.

        Args:
            make_vector: Builds it for ``len(seeds)`` environments; gets the seeds, for those that want them so early.
            seeds: One seed for each environment.
            first_index: Index of the first environment in the whole run, for messages.
            name: The environment's name, for messages.
            reset_seed: ``reset_seed(env, seeds)`` is given to ``env.reset(seed=...)``.
            box: What becomes of real numbers (see ``ActionCodec``).
            life_key: Entry of ``info`` that counts lives (int ``[B]``): losing one is reported as ``terminated`` while
                the episode goes on.
            on_failure: What an exception inside the vector does; a rebuild replaces it whole and masks every row.
            budget: How many rebuilds are allowed; shared by the groups of a worker.
            check_finite: Look for NaN and infinity.

        Raises:
            EnvironmentFailure: When the constructor raises and may not be tried again.
            UnsupportedSpace: When the spaces have no place in a slot, or the vector has another number of environments.
        """
        self.num_rows = len(seeds)
        self.failures: list[str] = []
        self._make_vector = make_vector
        self._seeds = [int(s) for s in seeds]
        self._rebuilds = 0
        self._reset_seed = reset_seed
        self._name = name
        self._first = first_index
        self._life_key = life_key
        self._budget = (budget or RestartBudget(10)) if on_failure == "restart" else None
        self._clock = 0
        self._env: Any = None
        self._env = self._construct(self._seeds)
        self._mode = _autoreset_mode(self._env)
        self.observation_space = self._env.single_observation_space
        self.action_space = self._env.single_action_space
        self._codec = ObservationCodec(self.observation_space)
        action = action_spec(self.action_space)
        self._actions = ActionCodec(action, box)
        self._checks = RowChecks(name, self._codec, action, first_index, check_finite)
        # Rows that show an observation from which their environment will not act: their next step is masked.
        self._masked = np.zeros(self.num_rows, bool)
        self._any_masked = False
        self._hidden_ends = np.zeros(self.num_rows, np.int64)
        self._lives = np.zeros(self.num_rows, np.int64)
        self._every_row = np.ones(self.num_rows, bool)
        self._return = np.zeros(self.num_rows, np.float64)
        self._length = np.zeros(self.num_rows, np.int32)

    def reset(self, into: ObservationView) -> None:
        """Start every environment's first episode with its seed; see ``Group.reset``."""
        self._clock = 0
        try:
            self._first_observation(self._seeds, into)
        except RollmillEnvError:
            raise
        except failures() as error:
            self._mend("reset", error, into)
        self._checks.observation(into, 0)

    def step(
        self, discrete: Array | None, continuous: Array | None, into: ObservationView, outcome: OutcomeView
    ) -> None:
        """Step the vector once; see ``Group.step``.

        Raises:
            EnvironmentFailure: When the vector raises and may not be rebuilt.
            NonFiniteObservation: When ``check_finite`` finds NaN or infinity.
        """
        self._clock += 1
        actions = self._actions.decode_batch(discrete, continuous)
        masked = self._masked
        try:
            observation, reward, terminated, truncated, info = self._env.step(actions)
        except failures() as error:
            self._mend("step", error, into)
            _write_failed(outcome)
            return
        self._codec.write(observation, into.observation)
        self._checks.reward_batch(reward, outcome.reward, self._clock)
        np.copyto(outcome.terminated, terminated)
        np.copyto(outcome.truncated, truncated)
        np.logical_not(masked, out=outcome.valid)
        np.copyto(into.reset, masked)
        outcome.episode_return.fill(np.nan)
        outcome.episode_length.fill(0)
        self._return += outcome.reward
        self._length += 1
        if self._any_masked:
            if self._mode == "next_step":
                self._return[masked] = 0.0
                self._length[masked] = 0
                outcome.terminated[masked] = False
                outcome.truncated[masked] = False
            outcome.reward[masked] = 0.0
        ended = outcome.terminated | outcome.truncated
        any_ended = bool(ended.any())
        self._masked, self._any_masked = ended, any_ended
        if any_ended:
            if self._mode != "next_step":
                # Nothing is bootstrapped from a terminated episode's final observation: the next one's first is shown.
                self._masked = outcome.truncated & ~outcome.terminated
                self._any_masked = bool(self._masked.any())
                np.logical_or(into.reset, ended & ~self._masked, out=into.reset)
            self._end(ended, masked, info, into, outcome)
        if self._life_key is not None:
            self._lose_lives(info[self._life_key], outcome, ended)
        if any_ended and self._mode == "disabled":
            # Now, not before the next step: its actions have to fit the masks of these first observations. What a
            # partial reset tells holds for the rows that it resets alone.
            self._write_mask(observation, info, into, ~ended)
            try:
                observation, info = self._env.reset(options={"reset_mask": ended.copy()})
            except failures() as error:
                self._mend("reset", error, into)
                _write_failed(outcome)
                return
            self._write_mask(observation, info, into, ended)
            for row in np.flatnonzero(ended & ~self._masked).tolist():
                self._codec.write_row(_row_of(observation, row), row, into.observation)
        else:
            self._write_mask(observation, info, into, self._every_row)
        if into.action_mask is not None:
            self._checks.masks(into.action_mask, self._clock)
        self._checks.reward(outcome.reward, self._clock)
        self._checks.observation(into, self._clock)

    def snapshot(self) -> bytes | None:
        """The vector, pickled, and what is known of its episodes; see ``SavableGroup.snapshot``."""
        return take(self, _STATE)

    def restore(self, snapshot: bytes) -> None:
        """Go on from a snapshot; see ``SavableGroup.restore``."""
        self.close()
        put_back(self, _STATE, snapshot)

    def close(self) -> None:
        """Close the vector environment."""
        env, self._env = self._env, None
        if env is not None:
            try:
                env.close()
            except failures() as error:  # what failed before, if anything, says more
                self.failures.append(report(self._name, "close", error))

    def _end(self, ended: Array, was_masked: Array, info: Any, into: ObservationView, outcome: OutcomeView) -> None:
        """Reports the rows that have ``ended``, and shows the final observation of those that are masked now."""
        outcome.episode_return[ended] = self._return[ended]
        outcome.episode_length[ended] = self._length[ended]
        self._return[ended] = 0.0
        self._length[ended] = 0
        # An episode of a single step can end inside a masked row; its end is counted, but is no transition.
        outcome.terminated[was_masked] = False
        outcome.truncated[was_masked] = False
        if self._mode == "next_step":
            return
        self._hidden_ends[ended] = np.where(was_masked & self._masked, self._hidden_ends + 1, 0)[ended]
        if int(self._hidden_ends.max()) >= _MOST_HIDDEN_ENDS:
            raise UnsupportedSpace(
                f"{_MOST_HIDDEN_ENDS} episodes in succession of {self._name} were truncated after a single step, which "
                "a vector with autoreset SAME_STEP or DISABLED makes unseen: nothing could be learned from them; build "
                "it with autoreset_mode=NEXT_STEP"
            )
        if self._mode == "same_step" and self._any_masked:
            final = info.get("final_obs", info.get("final_observation"))
            if final is None:
                raise UnsupportedSpace(
                    f"{self._name} resets in the same step but gives no info['final_obs']: the final observation is "
                    "needed to bootstrap truncated episodes; build it with autoreset_mode=NEXT_STEP"
                )
            for row in np.flatnonzero(self._masked).tolist():
                self._codec.write_row(_row_of(final, row), row, into.observation)

    def _lose_lives(self, lives: Array, outcome: OutcomeView, ended: Array) -> None:
        lost = (lives < self._lives) & outcome.valid & ~ended
        np.logical_or(outcome.terminated, lost, out=outcome.terminated)
        np.copyto(self._lives, lives)

    def _write_mask(self, observation: Any, info: Any, into: ObservationView, rows: Array) -> None:
        """Writes the masks of the rows that bool ``rows [B]`` chooses."""
        if into.action_mask is None:
            return
        raw = self._codec.mask_of(observation) if self._codec.has_mask else info.get(ACTION_MASK)
        # With NEXT_STEP a masked row's action is ignored; with the other modes it is the first of the next episode,
        # whose mask the vector shows already.
        ignored = self._masked if self._mode == "next_step" else np.zeros(self.num_rows, bool)
        for row in np.flatnonzero(rows).tolist():
            if raw is not None:
                into.action_mask[row] = self._checks.read_mask(_row_of(raw, row), row)
            elif ignored[row]:
                into.action_mask[row] = True
            else:
                raise self._checks.missing_mask(row)
        if ignored.any():
            self._checks.relax(into.action_mask, np.flatnonzero(ignored).tolist())

    def _first_observation(self, seeds: Sequence[int], into: ObservationView) -> None:
        observation, info = self._env.reset(seed=self._reset_seed(self._env, seeds))
        self._codec.write(observation, into.observation)
        into.reset.fill(True)
        self._masked = np.zeros(self.num_rows, bool)
        self._any_masked = False
        self._return.fill(0)
        self._length.fill(0)
        if self._life_key is not None:
            np.copyto(self._lives, info[self._life_key])
        self._write_mask(observation, info, into, self._every_row)
        if into.action_mask is not None:
            self._checks.masks(into.action_mask, self._clock)

    def _construct(self, seeds: Sequence[int]) -> Any:
        while True:
            try:
                env = self._make_vector(seeds)
                found = getattr(env, "num_envs", self.num_rows)
                if found != self.num_rows:
                    env.close()
                    raise UnsupportedSpace(
                        f"{self._name} was called with num_envs={self.num_rows} and returned a vector environment of "
                        f"{found}: return one of num_envs rows; the number is the run's envs_per_group"
                    )
                return env
            except RollmillEnvError:
                raise
            except failures() as error:
                self._spend("constructor", error)

    def _mend(self, where: str, error: BaseException, into: ObservationView) -> None:
        while True:
            self._spend(where, error)
            self.close()
            self._rebuilds += 1
            seeds = [
                int(np.random.SeedSequence([seed, self._rebuilds]).generate_state(1)[0] >> 1) for seed in self._seeds
            ]
            self._env = self._construct(seeds)
            try:
                self._first_observation(seeds, into)
                return
            except RollmillEnvError:
                raise
            except failures() as again:
                where, error = "reset", again

    def _spend(self, where: str, error: BaseException) -> None:
        index = f"{self._first}..{self._first + self.num_rows - 1}"
        if self._budget is None or not self._budget.spend():
            raise failure(self._name, index, where, self._clock, error, self._budget) from error
        self.failures.append(report(f"environments {index} of {self._name}", where, error))


def _autoreset_mode(env: Any) -> str:
    mode = getattr(env, "metadata", {}).get("autoreset_mode")
    # Gymnasium 1.0's vectors without the entry follow the default of that time, which is NEXT_STEP.
    return "next_step" if mode is None else _MODES[getattr(mode, "value", mode)]


def _row_of(batch: Any, row: int) -> Any:
    """Row of a batched observation: an array, or a dict or tuple of arrays (entries such as ``_key`` are masks)."""
    if isinstance(batch, dict):
        return {key: _row_of(value, row) for key, value in batch.items()}
    if isinstance(batch, tuple):
        return tuple(_row_of(value, row) for value in batch)
    return batch[row]


def _write_failed(outcome: OutcomeView) -> None:
    outcome.reward.fill(0)
    outcome.terminated.fill(False)
    outcome.truncated.fill(False)
    outcome.valid.fill(False)
    outcome.episode_return.fill(np.nan)
    outcome.episode_length.fill(0)
