"""A trained policy that computes actions for observations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rollmill.envs.actions import ActionCodec
from rollmill.envs.errors import UnsupportedSpace
from rollmill.envs.space_data import decode_spaces
from rollmill.envs.spaces import ACTION_MASK, ObservationCodec, action_spec
from rollmill.envs.task_group import TaskView
from rollmill.envs.user_code import import_user_code
from rollmill.envs.views import Array
from rollmill.evaluation.observations import check_observation
from rollmill.evaluation.saved_spaces import read_spaces
from rollmill.evaluation.snapshot import Snapshot, folder_of_policy, read_snapshot, require_trusted
from rollmill.evaluation.stage import spaces_of
from rollmill.evaluation.tasks import spec_of, task_index
from rollmill.runtime.seeds import int_seed

if TYPE_CHECKING:
    import gymnasium
    import torch

    from rollmill.algorithms.base import Algorithm


class AgentError(ValueError):
    """An agent's input does not fit its environment or its state."""


class TaskSpaces(NamedTuple):
    """The spaces that the tasks of a network share, and one of the tasks.

    Attributes:
        observation: Its observation space.
        action: Its action space.
        number: Index of the task.
    """

    observation: gymnasium.Space[Any]
    action: gymnasium.Space[Any]
    number: int


class Agent:
    """A policy with the weights of one checkpoint, independent of the run that wrote it.

    Observations and actions have the form of the environment's spaces. A single observation yields a single action; a
    batch (every array with an additional leading axis, as in vector environments) yields a batch. A recurrent policy
    has a state: call ``reset`` when an episode begins.

    Args:
        snapshot: Weights and configuration.
        observation_space: The environment's space of a single observation.
        action_space: The environment's space of a single action.
        device: Device of the network: "auto", "cpu", "cuda" or "cuda:<number>".
        seed: Keys the sampling of actions.
        needs_mask: Whether it was trained with masks of allowed actions, so that ``act`` needs one.
        task: Of a network that has learned several tasks, the one to act in: then the spaces are the task's own. None
            takes observations and gives actions in the spaces that all tasks share.

    Attributes:
        snapshot: The snapshot that the agent was built from.
        observation_space: As given.
        action_space: As given.
        task: As given.

    Raises:
        DeviceError: This machine has no such device.
        AgentError: The weights do not fit these spaces and this configuration.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        device: str = "cpu",
        seed: int = 0,
        needs_mask: bool = False,
        task: TaskSpaces | None = None,
    ) -> None:
        import torch

        from rollmill.evaluation.policies import Policy
        from rollmill.models.device import resolve_device

        self.snapshot = snapshot
        self._observations = ObservationCodec(observation_space)
        self._needs_mask = needs_mask
        self.observation_space, self.action_space, self.task = observation_space, action_space, task
        self._axes = _axes_of(observation_space)
        self._spec = action_spec(action_space)
        self._actions = ActionCodec(self._spec, snapshot.box_actions)
        self._device = resolve_device(device)
        specs, action = self._observations.specs, self._spec
        self._view: TaskView | None = None
        if task is not None:
            own = specs, action
            specs, action = ObservationCodec(task.observation).specs, action_spec(task.action)
            self._view = TaskView(own, specs, action, task.number)
        self._policy = Policy(
            specs,
            action,
            snapshot.model,
            snapshot.algorithm,
            self._device,
            torch.Generator(self._device).manual_seed(int_seed(seed, "agent", 0)),
        )
        try:
            self._policy.load(snapshot.weights)
        except (RuntimeError, TypeError, AttributeError) as error:  # names or values may be anything
            raise AgentError(
                f"{snapshot.checkpoint} does not fit {snapshot.env.name!r} and the network in the run's "
                f"config.json; were they changed after the training? ({error})"
            ) from error
        self._state: torch.Tensor | None = None
        self._num_rows: int | None = None
        self._is_first: np.ndarray[Any, np.dtype[np.bool_]] | None = None

    def __repr__(self) -> str:
        env, number = self.snapshot.env, None if self.task is None else self.task.number
        name = env.name if number is None else env.tasks[number]
        return (
            f"<Agent of {name!r}: {self.snapshot.algorithm.algorithm} after {self.snapshot.agent_steps:,} agent steps, "
            f"from {self.snapshot.checkpoint}>"
        )

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm, with the snapshot's weights."""
        return self._policy.algorithm

    @property
    def generator(self) -> torch.Generator:
        """The generator of the random numbers with which actions are sampled."""
        return self._policy.generator

    @property
    def needs_mask(self) -> bool:
        """Whether ``act`` needs a mask of allowed actions."""
        return (self._needs_mask or self._observations.has_mask) and self._spec.mask_size > 0

    def is_deterministic(self, given: bool | None) -> bool:
        """Whether to take the best actions; None leaves the choice to the policy."""
        return not self._policy.is_stochastic if given is None else given

    def act(
        self,
        observation: Any,
        *,
        deterministic: bool | None = None,
        action_mask: Any = None,
        is_batch: bool | None = None,
    ) -> Any:
        """Compute an action for one observation, or actions for a batch.

        Args:
            observation: As returned by the environment. An entry ``"action_mask"`` is used as the mask. Entries that
                are not in the environment's space are ignored, as in training.
            deterministic: Take the most probable action (the mean of a Gaussian) or the one with the highest value,
                instead of sampling or exploring. None samples for policies with probabilities (on-policy algorithms)
                and does not explore for value-based ones (off-policy algorithms).
            action_mask: Allowed choices, ``[M]`` or ``[B, M]``, head after head; for environments that return it in
                ``info``. Every head of every row must allow a choice. Required if the agent was trained with masks.
            is_batch: Whether the observation is a batch. None decides by the number of axes. This is ambiguous only if
                every array of the space has at most one number: then an array of shape ``[1]`` is a batch of one for a
                space of shape ``()``, and a single observation for a space of shape ``(1,)``.

        Returns:
            The argument of ``env.step``.

        Raises:
            AgentError: The observation is neither a single one of this environment nor a batch, the mask is missing,
                has the wrong size or allows nothing, or the number of rows changed without a ``reset``.
        """
        if is_batch is None:
            is_batch = self._is_batch(observation)
        try:
            if not is_batch:
                check_observation(self.observation_space, observation, None, finite=self.snapshot.env.check_finite)
                observation = _add_axis(self.observation_space, observation)
            num_rows = len(self._first_array(observation))
            check_observation(self.observation_space, observation, num_rows, finite=self.snapshot.env.check_finite)
            arrays = {
                name: np.empty((num_rows, *spec.shape), spec.dtype) for name, spec in self._observations.specs.items()
            }
            self._observations.write(observation, arrays)
        except (KeyError, IndexError, ValueError, TypeError, UnsupportedSpace) as error:
            raise AgentError(
                f"the observation does not fit the environment {self.snapshot.env.name!r} ({error}); give it as "
                "env.reset() and env.step() return it"
            ) from error
        if action_mask is None and self._observations.has_mask:
            action_mask = observation.get(ACTION_MASK)
        mask = self._read_mask(action_mask, num_rows)
        if self._view is not None:
            arrays, mask = self._view.observation(arrays), self._view.mask(mask, num_rows)
        discrete, continuous = self.choose(arrays, mask, deterministic)
        if self._view is not None:
            discrete, continuous = self._view.action(discrete, continuous)
        decode = self._actions.decode_batch if is_batch else self._actions.decode_row
        if is_batch:
            return decode(discrete, continuous)
        return decode(None if discrete is None else discrete[0], None if continuous is None else continuous[0])

    def reset(self, rows: Array | Sequence[int] | None = None) -> None:
        """Reset the recurrent state of rows in which a new episode begins.

        Args:
            rows: bool ``[B]`` or row indices. None resets all rows and allows a new number of rows.
        """
        if rows is None:
            self._state = None
            self._num_rows = None
            self._is_first = None
        elif self._is_first is not None:
            import torch

            index = np.asarray(rows)
            chosen = np.flatnonzero(index) if index.dtype == np.bool_ else index.astype(np.int64)
            self._is_first[chosen] = True
            if len(chosen) and self._state is not None:
                with torch.inference_mode():
                    self._state[torch.as_tensor(chosen, device=self._device, dtype=torch.long)] = 0.0

    def choose(
        self,
        observation: Mapping[str, Array],
        action_mask: Array | None,
        deterministic: bool | None,
        *,
        acts: Array | None = None,
    ) -> tuple[Array | None, Array | None]:
        """Compute actions for observations, both in the format of slots.

        Args:
            observation: Name -> ``[B, ...]``, as in ``EnvSpec.observation``.
            action_mask: bool ``[B, M]`` or None.
            deterministic: As in ``act``.
            acts: bool ``[B]``: rows whose action counts; the recurrent state of the others is kept. None is all.

        Returns:
            ``(discrete, continuous)``: int32 ``[B, Kd]`` and float32 ``[B, Kc]``, None if there are no such heads.

        Raises:
            AgentError: The number of rows changed without a ``reset``.
        """
        import torch

        num_rows = len(next(iter(observation.values())))
        if self._num_rows not in (None, num_rows) and self._policy.state_size:
            raise AgentError(
                f"{num_rows} observations were given, but the recurrent state is that of {self._num_rows} rows; "
                "call reset() before a different number of rows"
            )
        self._num_rows = num_rows
        if self._is_first is None or len(self._is_first) != num_rows:
            self._is_first = np.ones(num_rows, np.bool_)
        # Copy on the CPU, too: the caller's arrays may be read-only, and the next step overwrites them.
        tensors = {name: torch.tensor(array, device=self._device) for name, array in observation.items()}
        mask = None if action_mask is None else torch.tensor(action_mask, device=self._device)
        with torch.inference_mode():
            action, state = self._policy.choose(
                tensors,
                self._state,
                mask,
                is_first=torch.tensor(self._is_first, device=self._device),
                deterministic=self.is_deterministic(deterministic),
            )
            if acts is not None and state is not None:
                before = torch.zeros_like(state) if self._state is None else self._state
                state = torch.where(torch.tensor(acts, device=self._device)[:, None], state, before)
        self._state = state
        self._is_first[slice(None) if acts is None else acts] = False
        return (
            None if action.discrete is None else action.discrete.to("cpu", torch.int32).numpy(),
            None if action.continuous is None else action.continuous.to("cpu", torch.float32).numpy(),
        )

    def _is_batch(self, observation: Any) -> bool:
        path, shape = self._axes
        try:
            axes = np.ndim(self._first_array(observation))
            # A number and an array of one element are equivalent.
            extra = 0 if shape == (1,) and not axes else axes - len(shape)
        except (KeyError, IndexError, TypeError, ValueError):
            if path:
                return False  # The check of the entries reports what is missing.
            extra = -1
        if extra not in (0, 1):
            raise AgentError(
                f"the observation ({type(observation).__name__}{_shape(observation)}) is neither one observation of "
                f"{self.snapshot.env.name!r}, whose arrays are "
                + ", ".join(f"{name} {spec.shape}" for name, spec in self._observations.specs.items())
                + ", nor a batch of them"
            )
        return extra == 1

    def _first_array(self, observation: Any) -> Any:
        for key in self._axes[0]:
            observation = observation[key]
        return observation

    def _read_mask(self, mask: Any, num_rows: int) -> Array | None:
        where = "the observation's entry" if self._observations.has_mask else "act's argument"
        if mask is None:
            if not self.needs_mask:
                return None
            raise AgentError(
                f"no action mask was given, but this agent was trained with masks of allowed actions: give {where} "
                f"{ACTION_MASK!r} with {self._spec.mask_size} entries a row (the environment's mask; ones allow all)"
            )
        parts = mask if isinstance(mask, tuple) else (mask,)
        try:
            arrays = [np.asarray(part).reshape(num_rows, -1) for part in parts]
            numbers = np.concatenate(arrays, axis=1)
            if numbers.dtype.kind == "f" and np.isnan(numbers).any():
                raise ValueError("NaN")
            joined = numbers.astype(bool)
        except (TypeError, ValueError) as error:
            raise AgentError(
                f"the action mask does not have {num_rows} row(s) of numbers ({error}); {self._spec.mask_size} entries "
                "a row are needed, one for each choice of each categorical head"
            ) from error
        if joined.shape[1] != self._spec.mask_size:
            raise AgentError(
                f"the action mask has {joined.shape[1]} entries a row; {self._spec.mask_size} are needed, one for each "
                "choice of each categorical head"
            )
        first = 0
        for head, choices in enumerate(self._spec.categorical_sizes):
            forbidden = ~joined[:, first : first + choices].any(axis=1)
            first += choices
            if forbidden.any():
                row = int(forbidden.argmax())
                raise AgentError(
                    f"the action mask allows none of the {choices} choices of head {head} in row {row}: allow at least "
                    "one in each row (give ones where an episode has ended, or do not ask for an action there)"
                )
        return joined


def load(
    run_dir: Path | str,
    checkpoint: str | Path = "latest",
    device: str = "cpu",
    *,
    seed: int = 0,
    trust: bool = False,
    policy: str | None = None,
    task: str | None = None,
) -> Agent:
    """Load the agent of a run. The environment's code is needed only for runs of older versions of Rollmill.

    Those runs did not store the environment's spaces, so an environment is built to read them. A registered network or
    algorithm also needs its code.

    Args:
        run_dir: Directory of a run, finished or not.
        checkpoint: ``"latest"``, ``"best"``, the path of a checkpoint file, or the name of one of the run's.
        device: Device of the network: "auto", "cpu", "cuda" or "cuda:<number>".
        seed: Keys the sampling of actions.
        trust: Whether to execute code that the directory names even if this user's runs did not write it.
        policy: Name of the policy, in a run with several.
        task: Name of the task to act in, of a run that learned several: then the agent takes the task's own
            observations. None is for the spaces that all tasks share, whose observations have an entry
            ``rollmill.specs.TASK`` where the network needs to know the task.

    Raises:
        UnknownTaskError: The run has no such task.
        UntrustedError: Such code is needed without ``trust``.
        SavedSpacesError: The stored spaces are damaged.
        DeviceError: This machine has no such device.
        NoRunError: There is no such run or checkpoint.
        CheckpointError: No checkpoint is intact.
        AgentError: The weights do not fit the environment.
    """
    run_dir = folder_of_policy(run_dir, policy)
    snapshot = read_snapshot(run_dir, checkpoint)
    spaces = read_spaces(run_dir)
    if spaces is None:
        _import_modules(run_dir, snapshot, trust=trust)
    import_network(run_dir, snapshot, trust=trust)
    if spaces is None and snapshot.env.tasks:
        spaces = decode_spaces(spec_of([snapshot], snapshot.env).spaces)
    spaces = spaces or spaces_of(snapshot.env, snapshot.group_size)
    shared = None
    if task is not None:
        index = task_index(snapshot.env, task)
        shared, spaces = TaskSpaces(spaces.observation, spaces.action, index), spaces.tasks[snapshot.env.tasks[index]]
    return Agent(
        snapshot,
        spaces.observation,
        spaces.action,
        device=device,
        seed=seed,
        needs_mask=spaces.has_action_mask,
        task=shared,
    )


def import_network(run_dir: Path | str, snapshot: Snapshot, *, trust: bool) -> None:
    """Import the modules that a run names if its network is neither built in nor registered in this process.

    Args:
        run_dir: The run's directory.
        snapshot: Of the run.
        trust: Whether to execute code that the directory names even if this user's runs did not write it.

    Raises:
        UntrustedError: Such code is needed without ``trust``.
        NoSuchModuleError: A module is no longer there.
    """
    if not _is_network_known(snapshot):
        _import_modules(run_dir, snapshot, trust=trust)


def _import_modules(run_dir: Path | str, snapshot: Snapshot, *, trust: bool) -> None:
    require_trusted(run_dir, snapshot, trust=trust)
    for module in snapshot.env.imports:
        import_user_code(module)


def _is_network_known(snapshot: Snapshot) -> bool:
    """Whether the network's names are built in or registered in this process."""
    from rollmill.algorithms.off_policy_config import OffPolicyConfig
    from rollmill.algorithms.registry import ALGORITHMS
    from rollmill.models.registry import is_known

    if snapshot.algorithm.algorithm not in ALGORITHMS:
        return False
    return isinstance(snapshot.algorithm, OffPolicyConfig) or is_known(snapshot.model)


def _axes_of(space: gymnasium.Space[Any]) -> tuple[tuple[str | int, ...], tuple[int, ...]]:
    """Return the path to the array whose axes tell one observation from a batch, and its shape.

    It is the first array with more than a number, because a number and an array of one element are equivalent.
    """
    # The mask, a top-level entry, may be an argument instead.
    arrays = [(path, shape) for path, shape in _arrays_of(space) if path != (ACTION_MASK,)]
    return next(((path, shape) for path, shape in arrays if shape not in ((), (1,))), arrays[0])


def _arrays_of(
    space: gymnasium.Space[Any], path: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], tuple[int, ...]]]:
    """Yield the path to each array of an observation, and its shape."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        for key, part in parts:
            yield from _arrays_of(part, (*path, key))
    else:
        yield path, space.shape or ()


def _add_axis(space: gymnasium.Space[Any], observation: Any) -> Any:
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        # The mask may be an argument instead.
        return {key: _add_axis(each, observation[key]) for key, each in space.spaces.items() if key in observation}
    # Lists are accepted, as in Gymnasium. Other types raised before, except one mask over all heads.
    is_tuple = isinstance(observation, tuple | list) and len(observation) == len(getattr(space, "spaces", ()))
    if isinstance(space, spaces.Tuple) and is_tuple:
        return tuple(_add_axis(each, value) for each, value in zip(space.spaces, observation, strict=True))
    return np.asarray(observation)[None]


def _shape(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return "" if shape is None else f" of shape {shape}"
