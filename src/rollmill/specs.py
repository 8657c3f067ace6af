"""What flows through Rollmill: array, action and environment specs, and the time axis of a slot.

Everything here is data: no processes, no shared memory, no torch, no Gymnasium. Every other part may import this
module and it imports nothing of ours, so a question such as "which step does ``reward[t]`` belong to?" has one answer,
here.

The time axis of a slot
=======================
A slot holds ``T`` steps of one group of ``B`` rows (a row is one agent of one environment)::

    step t:   x_t  --policy-->  a_t  --environment-->  r_t, terminated_t, truncated_t, x_{t+1}

    [T + 1, B, ...]  observation, action_mask   x_t, t = 0..T; x_T is also x_0 of the group's next slot
    [T + 1, B]       reset                      x_t is the first observation of an episode: the recurrent state is
                                                zeroed before x_t is consumed
    [T + 1, B]       acts                       with several agents: whether the row's agent chooses an action
    [T + 1, B]       policy_id                  with past selves: who plays the row, 0 for the policy that learns
    [T + 1, B]       match_return               likewise, with several agents: the return of the row's episode, if it
                                                has ended in the present game of its environment; NaN before
    [T + 1, B]       value                      V(x_t) as the behaviour policy saw it; value[T] is filled when the next
                                                slot's x_0 is inferred (same observation, same recurrent state), in
                                                lockstep by the version that filled the slot, before the next one begins
    [T, B, ...]      action, log_prob           a_t and log mu(a_t | x_t), mu being the behaviour policy
    [T, B]           policy_version             of the policy that chose a_t
    [T, B]           reward                     r_t, raw (unscaled, unclipped): the consequence of a_t
    [T, B, R]        reward_terms               parts of the reward that learners weigh, where there are any
    [T, B]           terminated, truncated      whether the episode ended *with* r_t
    [T, B]           valid                      whether (x_t, a_t, r_t, x_{t+1}) is a transition to learn from
    [T, B]           episode_return, _length    of the episode that ended with r_t; NaN and 0 elsewhere
    [T, B]           episode_objective          what it was worth by the task's own measure, if it is needed
    [B, S]           rnn_state                  recurrent state before x_0 (before ``reset[0]`` is applied)

Autoreset is NEXT_STEP for every environment, whatever its own mode: when the episode ends with r_t, ``x_{t+1}`` is the
*true final observation*. It stands in a masked row: a_{t+1} is ignored, the environment is reset instead, r_{t+1} is 0,
``valid[t+1]`` is False, and x_{t+2} is the first observation of the next episode with ``reset[t+2]`` True. The
recurrent state is carried into x_{t+1}, so V(x_{t+1}) is the right bootstrap for a truncated episode without a special
case. (Vectors that reset in the same step show the next episode's first observation right behind a termination, with
``reset[t+1]`` True and nothing masked: the final observation of a terminated episode is not needed.)

The recursions over time (GAE, V-trace) therefore need only three facts of a step:

    bootstrap   V(x_{t+1}) counts unless ``terminated[t]``
    cut         the recursion does not continue from t into t + 1 when ``terminated[t]``, ``truncated[t]`` or
                ``not valid[t+1]`` (step T is never continued into: it belongs to the next slot)
    valid       an invalid step gets advantage 0 and takes no part in any loss

An environment that fails during step t writes ``valid[t] = False``: x_t is then a masked row like any other, step t - 1
bootstraps from V(x_t), and nothing else has to know.

Several agents
==============
With several agents in an environment a row is one of them, and not every agent acts at every step: it waits for its
turn, is dead, or has not come yet. ``acts[t]`` is False then: x_t is not shown to the policy, ``valid[t]`` is False,
and ``reset`` marks the first observation of an episode *from which the row acts*. Unlike masked rows such steps are
transparent: a turn lasts from one step at which the row acts to the next one, its reward is the sum of the rewards in
between, and V of the next turn follows it. The learner keeps the turns alone (:mod:`rollmill.learning.turns`), so that
nothing behind it knows of steps without an action; a replay joins them when it is drawn from
(``cpp/core/replay_turns.cpp``). Turns that a past self plays are left out likewise; who plays a row
changes only where a match begins. A turn whose end is not in the slot serves as the bootstrap of the
one before it. The final observation of a truncated agent is a masked row at which it acts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

CENTRAL_VIEW = "all_agents"
"""Name of the entry of an observation that has those of all agents, for critics (model.central_value)."""

TASK = "task_of_run"
"""Name of the entry of an observation that says which of several tasks it belongs to, one-hot."""

PICTURE_SIDE = 16
"""The smallest side of a picture; MiniGrid's views, whose bytes are categories, are smaller."""

SOUND_SAMPLES = 256
"""The fewest samples of a sound; shorter arrays are vectors."""

_MOST_CHOICES = 4096  # of an integer entry that encoders see as one-hot
_MAX_CATEGORY = 31  # the largest number on a grid that is still taken for a category


@dataclass(frozen=True, kw_only=True)
class FrameStack:
    """That an array's first axis holds the last frames, the oldest first; so x_t can be made of x_t's newest frames.

    Attributes:
        depth: How many.
        padding: What stands for the frames before an episode's first: "zero" (ALE), or "repeat" of it (Gymnasium).
    """

    depth: int
    padding: Literal["zero", "repeat"]


@dataclass(frozen=True, kw_only=True)
class ArraySpec:
    """Shape and dtype of one array, without time or batch axes.

    Attributes:
        shape: Shape of one item, for example ``(4, 84, 84)``.
        dtype: NumPy dtype name, for example ``"uint8"``. Observations keep the environment's own dtype.
        low: Smallest value, where the space declares a finite one for all elements.
        high: Largest value, likewise.
        one_hot: Whether these are choices that the data plane has made one-hot, and nobody normalises.
        stack: How its frames are stacked, where it is known to be a stack.
        seen: The largest magnitude in the first observation of a probe; None where none was looked at.
    """

    shape: tuple[int, ...]
    dtype: str
    low: float | None = None
    high: float | None = None
    one_hot: bool = False
    stack: FrameStack | None = None
    seen: float | None = field(default=None, compare=False)

    @property
    def size(self) -> int:
        """Number of elements of one item."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of one item."""
        return self.size * np.dtype(self.dtype).itemsize

    @property
    def is_categorical(self) -> bool:
        """Whether this is of bytes whose declared bounds are 0 and a number so small that they are categories."""
        return self.dtype == "uint8" and self.low == 0 and self.high is not None and self.high <= _MAX_CATEGORY

    @property
    def is_image(self) -> bool:
        """Whether its bytes are pixels, or categories on a grid.

        That is a uint8 array of three axes, of four (a stack of images), or of two where its sides are a picture's and
        its numbers are not a board's few categories.
        """
        if self.dtype != "uint8":
            return False
        if len(self.shape) == 2:
            return min(self.shape) >= PICTURE_SIDE and not self.is_categorical
        return len(self.shape) in (3, 4)

    @property
    def is_picture(self) -> bool:
        """Whether an encoder of images reads it by default: an image, or a picture or a stack of them of any dtype."""
        if self.is_image or len(self.shape) not in (3, 4):
            return self.is_image
        first, middle, last = self.shape[-3:]  # Channels are first or last.
        return min(middle, max(first, last)) >= PICTURE_SIDE

    @property
    def choices(self) -> int:
        """Choices of an integer entry with one element and declared bounds, which encoders see as one-hot; else 0."""
        is_integer = self.dtype.startswith(("int", "uint"))
        if not is_integer or self.size != 1 or self.low is None or self.high is None:
            return 0
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            return 0
        choices = int(self.high) - int(self.low) + 1
        return choices if choices <= _MOST_CHOICES else 0

    @property
    def is_sound(self) -> bool:
        """Whether encoders take this for sound: int16 samples ``[C, S]`` of one or two channels."""
        return (
            self.dtype == "int16"
            and len(self.shape) == 2
            and self.shape[0] in (1, 2)
            and self.shape[1] >= SOUND_SAMPLES
        )


@dataclass(frozen=True, kw_only=True)
class CategoricalHead:
    """One choice out of ``n``; stored as 0..n-1, sent to the environment as ``start + choice``."""

    n: int
    start: int = 0


@dataclass(frozen=True, kw_only=True)
class BoxHead:
    """``len(low)`` real numbers, one Gaussian each; ``shape`` is what the environment expects."""

    low: tuple[float, ...]
    high: tuple[float, ...]
    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def size(self) -> int:
        """Number of real numbers."""
        return len(self.low)

    @property
    def is_bounded(self) -> bool:
        """Whether every element has a finite lower and upper bound, and what lies between them is finite, too."""
        # In float32: the largest numbers that there are stand for no bounds.
        with np.errstate(over="ignore", invalid="ignore"):
            ranges = np.array(self.high).astype(np.float32) - np.array(self.low).astype(np.float32)
        return bool(np.isfinite(ranges).all())


Head = CategoricalHead | BoxHead

BoxActions = Literal["clip", "tanh", "scale"]
"""How a stored real number becomes one of a Box: as it is, clipped; squashed by tanh into it; scaled from [-1, 1]."""


@dataclass(frozen=True, kw_only=True)
class ActionSpec:
    """The action of one row: independent heads, in order.

    A slot stores the categorical choices of all heads as ``action_discrete [T, B, num_discrete]`` (int32) and the real
    numbers of all heads as ``action_continuous [T, B, num_continuous]`` (float32); an array with no columns does not
    exist.

    Attributes:
        heads: The heads, in the order of the environment's action space.
        structure: How the environment wants its action put together again: a bare scalar (``Discrete``), one integer
            array (``MultiDiscrete``), one float array (``Box``), or a tuple or dict with one entry for each component.
        components: For ``tuple`` and ``dict``: how many heads each component has (a ``MultiDiscrete`` has several)
            and what it is.
        keys: For ``dict``: the components' names.
    """

    heads: tuple[Head, ...]
    structure: Literal["discrete", "multidiscrete", "box", "tuple", "dict"]
    components: tuple[tuple[Literal["discrete", "multidiscrete", "box"], int], ...] = ()
    keys: tuple[str, ...] = ()

    @property
    def categorical_sizes(self) -> tuple[int, ...]:
        """Number of choices of each categorical head."""
        return tuple(h.n for h in self.heads if isinstance(h, CategoricalHead))

    @property
    def num_discrete(self) -> int:
        """Columns of ``action_discrete``."""
        return len(self.categorical_sizes)

    @property
    def num_continuous(self) -> int:
        """Columns of ``action_continuous``."""
        return sum(h.size for h in self.heads if isinstance(h, BoxHead))

    @property
    def mask_size(self) -> int:
        """Columns of ``action_mask``: one for each choice of each categorical head, head after head."""
        return sum(self.categorical_sizes)

    @property
    def in_unit_box(self) -> ActionSpec:
        """The same with every real number in [-1, 1]: as it is stored where the data plane scales it to its Box."""
        heads = [
            replace(h, low=(-1.0,) * h.size, high=(1.0,) * h.size) if isinstance(h, BoxHead) else h for h in self.heads
        ]
        return replace(self, heads=tuple(heads))


@dataclass(frozen=True, kw_only=True)
class EnvSpec:
    """All that the other parts know of an environment. Picklable; found once, in a child process, by a probe.

    Attributes:
        name: The preset or environment id, for messages.
        observation: Name -> spec. A space that is not a dict has the single name ``"obs"``; nested dicts are flattened
            with ``/``.
        action: The action of one row.
        has_action_mask: Whether the environment gives a mask of allowed actions, in ``info["action_mask"]`` or in the
            observation under ``"action_mask"`` (then it is no observation for the network).
        agents: Names of an environment's agents, each of which is a row; empty for ordinary environments.
        frameskip: Simulator frames that one agent step stands for; frames = agent steps x frameskip.
        max_episode_steps: Time limit in agent steps, where known.
        native_vector: Whether groups are native vector environments, stepped in one call.
        keeps_group_size: Whether those are the user's, whose factory is called with the run's ``envs_per_group`` only.
        tasks: The tasks that a network learns together, each in its own spaces; empty where there is one.
        repeats: Whether it showed the same twice when it was reset with the same seed; None where that was not tried.
        spaces: Its observation and action space as JSON data; None where they have no such form.
        caveats: What the environment itself tells the user before a run, in sentences.
    """

    name: str
    observation: Mapping[str, ArraySpec]
    action: ActionSpec
    has_action_mask: bool = False
    agents: tuple[str, ...] = ()
    frameskip: int = 1
    max_episode_steps: int | None = None
    native_vector: bool = False
    keeps_group_size: bool = False
    tasks: tuple[EnvSpec, ...] = ()
    repeats: bool | None = None
    spaces: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)
    caveats: tuple[str, ...] = field(default=(), compare=False)

    @property
    def rows_per_env(self) -> int:
        """Rows that one environment fills; 1 for ordinary environments."""
        return len(self.agents) or 1

    @property
    def has_images(self) -> bool:
        """Whether any entry of the observation is a picture."""
        return any(item.is_picture for item in self.observation.values())
