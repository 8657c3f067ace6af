"""Fills a new replay with recorded episodes, before the processes of a run start.

The slots get what a rollout worker would have written, had its environments shown these episodes: an episode of L steps
takes L steps of a row, and a masked one for its true final observation. Workers take the slots over like those that an
earlier session has left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollmill.envs.actions import ActionCodec
from rollmill.envs.errors import UnsupportedSpace
from rollmill.envs.space_data import decode_spaces
from rollmill.envs.spaces import ObservationCodec
from rollmill.evaluation.demonstrations import DemonstrationError, read_dataset
from rollmill.settings.config import Config
from rollmill.settings.value_checks import ConfigError
from rollmill.specs import EnvSpec
from rollmill.storage.replay import ReplayStore
from rollmill.storage.slots import NO_SLOT, RNN_STATE, Topology

Array = NDArray[Any]


class Stream(NamedTuple):
    """Recorded episodes one after another, as a row of a group sees them: arrays ``[N, ...]``.

    Attributes:
        fields: Name of a slot's array -> its contents at each step.
        observation: Name -> what is observed before each step.
    """

    fields: Mapping[str, Array]
    observation: Mapping[str, Array]

    @property
    def steps(self) -> int:
        """N."""
        return len(self.fields["valid"])


def read_stream(name: str, config: Config, spec: EnvSpec) -> Stream:
    """Read a dataset into the layout of slots.

    Args:
        name: The dataset's.
        config: The run's settings, which say how actions are stored.
        spec: The environment.

    Raises:
        ConfigError: There is no such dataset, its spaces are not those of the environment, or it has values that an
            environment may not give or take.
        MissingExtra: Minari is not installed.
    """
    try:
        dataset = read_dataset(name)
    except DemonstrationError as error:
        raise ConfigError(f"replay.preload: {error}") from error
    spaces = None if spec.spaces is None else decode_spaces(spec.spaces)
    unfit = {
        "several agents": bool(spec.agents),
        "masks of actions": spec.has_action_mask,
        "several tasks": bool(config.env.tasks),
        "several policies": len(config.population.names) > 1,
        "spaces that are not known": spaces is None,
    }
    if spaces is None or any(unfit.values()):
        raise ConfigError(
            f"replay.preload={name}: recorded steps are not for {' and '.join(what for what in unfit if unfit[what])}, "
            "which this run has: leave it out"
        )
    for what, recorded, own in (
        ("observations", dataset.observation_space, spaces.observation),
        ("actions", dataset.action_space, spaces.action),
    ):
        if recorded != own:
            raise ConfigError(f"replay.preload={name}: its {what} are of {recorded}, those of {spec.name} of {own}")
    codec, actions = ObservationCodec(spaces.observation), ActionCodec(spec.action, "scale")
    parts = []
    try:
        for episode in dataset.iterate_episodes():
            try:
                parts.append(_steps_of(episode, codec, actions, spec, check_finite=config.env.check_finite))
            except (ConfigError, UnsupportedSpace) as error:
                raise ConfigError(
                    f"replay.preload={name}: episode {episode.id} cannot be learned from, because {error}"
                ) from None
    except (KeyError, OSError) as error:
        raise ConfigError(f"replay.preload={name}: the dataset cannot be read ({error!r})") from error
    if not parts:
        raise ConfigError(f"replay.preload={name}: the dataset has no episodes")
    return Stream(_joined([part.fields for part in parts]), _joined([part.observation for part in parts]))


def _joined(parts: list[Mapping[str, Array]]) -> dict[str, Array]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _steps_of(
    episode: Any, codec: ObservationCodec, actions: ActionCodec, spec: EnvSpec, *, check_finite: bool
) -> Stream:
    """Return the steps of an episode.

    Raises:
        ConfigError: Numbers are not finite, or choices not in the action space.
        UnsupportedSpace: An observation is not in its space.
    """
    length = len(episode.rewards)
    observation = {name: np.empty((length + 1, *item.shape), item.dtype) for name, item in spec.observation.items()}
    codec.write(episode.observations, observation)
    terminated = np.append(np.asarray(episode.terminations, bool), False)
    truncated = np.append(np.asarray(episode.truncations, bool), False)
    # A recording may have been cut.
    truncated[length - 1] |= not terminated[length - 1]
    reward = np.append(np.asarray(episode.rewards, np.float32), np.float32(0))
    if check_finite:
        advice = "leave the episode out, or accept it with env.check_finite=false"
        _require_finite(reward, "a reward", advice)
        for name in codec.float_names:
            _require_finite(observation[name], f"an observation {name!r}", advice)
    discrete, continuous = actions.encode_batch(episode.actions, length)
    if discrete is not None and not ((discrete >= 0) & (discrete < spec.action.categorical_sizes)).all():
        raise ConfigError("an action is not in the action space: leave the episode out")
    if continuous is not None:
        _require_finite(continuous, "an action", "leave the episode out")
        # What an environment does with numbers outside of its bounds, and the only ones that a policy takes.
        continuous = continuous.clip(-1.0, 1.0)
    fields = {
        "reward": reward,
        "terminated": terminated,
        "truncated": truncated,
        "valid": np.arange(length + 1) < length,
        "reset": np.arange(length + 1) == 0,
        "policy_version": np.zeros(length + 1, np.int32),  # No version of the run's has made them.
    }
    for name, action in (("action_discrete", discrete), ("action_continuous", continuous)):
        if action is not None:
            fields[name] = np.concatenate([action, np.zeros_like(action[:1])])
    return Stream(fields, observation)


def _require_finite(array: Array, what: str, advice: str) -> None:
    if not np.isfinite(array).all():
        raise ConfigError(f"{what} of it is NaN or infinite: {advice}")


class Preload:
    """Recorded episodes, cut to what fits into the replay of one rank.

    Args:
        stream: The episodes.
        topology: Of the replay.

    Attributes:
        steps: Transitions that are preloaded.
        left_out: Transitions that do not fit.

    Raises:
        ConfigError: They do not fill a single slot.
    """

    def __init__(self, stream: Stream, topology: Topology) -> None:
        """Assign steps to slots."""
        self._stream, self._topology = stream, topology
        per_slot = topology.rollout_length * topology.group_rows
        # The last step of the stream is only observed.
        fit = (stream.steps - 1) // per_slot
        if not fit:
            raise ConfigError(
                f"replay.preload: {stream.steps - 1} recorded steps are fewer than the {per_slot} of one slot "
                f"(rollout_length={topology.rollout_length} times {topology.group_rows} rows of a group): record more, "
                "or use a smaller rollout_length or envs_per_group"
            )
        self._slots_of_group = _shared_out(fit, topology)
        valid = stream.fields["valid"]
        self.steps = sum(int(valid[rows].sum()) for _, rows in self._places())
        self.left_out = int(valid.sum()) - self.steps

    def _places(self) -> Iterator[tuple[int, Array]]:
        """Yield each slot, and the steps of the stream in it, int64 ``[T, B]``; the slots of a group in order."""
        steps, rows = self._topology.rollout_length, self._topology.group_rows
        begin = 0
        for slots in self._slots_of_group:
            # Each row has consecutive steps of the stream, over all slots of the group.
            first = begin + np.arange(rows) * steps * len(slots)
            for number, slot in enumerate(slots):
                yield slot, first + (number * steps + np.arange(steps))[:, None]
            begin += rows * steps * len(slots)

    def write(self, store: ReplayStore) -> None:
        """Write the steps into a new replay, before any process uses it."""
        steps, stream = self._topology.rollout_length, self._stream
        firsts = {slots[0] for slots in self._slots_of_group if slots}
        previous = NO_SLOT
        pending = np.zeros(self._topology.group_rows, np.int64)
        for slot, place in self._places():
            if slot in firsts:
                previous = NO_SLOT
                pending = np.zeros_like(pending)
            store.begin(slot, previous)
            last = place[-1:] + 1
            for name, array in stream.fields.items():
                into = store.arrays[name][slot]
                into[:steps] = array[place]
                if len(into) > steps:  # what is carried into the next slot
                    into[steps:] = array[last]
            for name, array in stream.observation.items():
                whole = np.concatenate([place, last])
                newest = array[:, -1] if name in store.stacks else array
                store.observation[name][slot] = newest[whole]
            if RNN_STATE in store.arrays:
                store.arrays[RNN_STATE][slot] = 0.0
            for step in range(steps):
                store.commit(slot, step, pending)
            previous = slot
        store.limiter.forget(-self.steps)


def _shared_out(slots: int, topology: Topology) -> list[list[int]]:
    """Return the slots of each group that are filled; every group keeps two of its worker's free."""
    of_group: list[list[int]] = [[] for _ in range(topology.num_groups)]
    free = []
    for worker in range(topology.num_workers):
        groups, owned = topology.groups_of_worker(worker), list(topology.slots_owned_by(worker))
        free.append((list(groups), owned[2 * len(groups) :]))
    left = slots
    while left and any(owned for _, owned in free):
        for groups, owned in free:
            for group in groups:
                if owned and left:
                    of_group[group].append(owned.pop(0))
                    left -= 1
    return of_group
