from collections.abc import Iterable, Sequence
from typing import Any, Literal, SupportsIndex, TypeAlias

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

_Int16: TypeAlias = npt.NDArray[np.int16]
_Int64: TypeAlias = npt.NDArray[np.int64]
_UInt64: TypeAlias = npt.NDArray[np.uint64]
_Float32: TypeAlias = npt.NDArray[np.float32]
_Float64: TypeAlias = npt.NDArray[np.float64]
_Array: TypeAlias = npt.NDArray[Any]

class LaneRing:
    """Many producers, one consumer, int64 values, in memory shared between processes.

    Each producer owns one *lane* (a bounded first-in-first-out ring) and there are no locks, so a producer killed at any
    instruction blocks and corrupts nothing. A lane takes one producer at a time, the ring one consumer at a time; the
    threads of one process count as one. An object is a view of the memory and survives a fork.

    Args:
        memory: Writable memory shared by the processes, such as an ``mmap``, of at least ``nbytes`` bytes; its start must
            be a multiple of 64 bytes. It is kept alive.
        num_lanes: Lanes, one for each producer.
        capacity: Values that a lane holds.
        create: Whether to write a fresh ring (one process, before the others attach) or to attach to the one there.

    Raises:
        ValueError: The memory is too small or misaligned, or holds no ring, another version's, or one of another
            geometry.
    """

    def __init__(self, memory: Buffer | _Array, num_lanes: int, capacity: int, *, create: bool) -> None: ...
    @staticmethod
    def nbytes(num_lanes: int, capacity: int) -> int:
        """Bytes of memory for a ring; ``capacity`` is rounded up to a power of two in it.

        Raises:
            ValueError: ``num_lanes`` or ``capacity`` is out of range.
        """

    @property
    def num_lanes(self) -> int:
        """Lanes, one for each producer."""

    @property
    def capacity(self) -> int:
        """Values that a lane holds."""

    def put(self, lane: int, value: int, /) -> bool:
        """Put one value; never blocks.

        Returns:
            False when the lane is full.

        Raises:
            IndexError: There is no such lane.
        """

    def get_many(self, out: _Int64, timeout_s: float, min_items: int = 1) -> int:
        """Take up to ``len(out)`` values, once at least ``min_items`` have arrived.

        Values of one lane come in the order they were put; the lanes take turns, so none starves.

        Args:
            out: ``[n]`` int64, filled from the front.
            timeout_s: Seconds to wait for ``min_items`` (0 polls, ``inf`` waits for ever). Fewer may be taken then.
            min_items: 1 up to the smaller of ``n`` and ``capacity``.

        Returns:
            How many values were taken; 0 after the timeout, or when ``wake`` was called.

        Raises:
            TypeError: ``out`` is no writable one-dimensional int64 array.
            ValueError: ``timeout_s`` is negative or NaN, or ``min_items`` out of range.
        """

    def wake(self) -> None:
        """End the consumer's present wait, or its next one, early. Any thread of any process may call this."""

    def __len__(self) -> int:
        """Values put and not yet taken: a moment's view."""

class MessageLanes:
    """Lanes of integers and bytes with any number of producers and consumers; the core of ``rollmill.ring.Queue``.

    Args:
        memory: As for ``LaneRing``.
        num_lanes: Producers (processes, or objects within one) that can be alive at once.
        capacity: Words of 8 bytes that a lane holds: an integer takes one (two beyond 63 bits), ``n`` bytes take
            ``1 + ceil(n / 8)``.
        create: As for ``LaneRing``.

    Raises:
        ValueError: As for ``LaneRing``.
    """

    def __init__(self, memory: Buffer | _Array, num_lanes: int, capacity: int, *, create: bool) -> None: ...
    @staticmethod
    def nbytes(num_lanes: int, capacity: int) -> int:
        """Bytes of memory; see ``LaneRing.nbytes``."""

    def put(self, obj: SupportsIndex | bytes, block: bool = True, timeout: float | None = None) -> None:
        """Put one message, waiting for space in this producer's lane if ``block``.

        Raises:
            queue.Full: There was no space within ``timeout`` seconds (None: for ever).
            TypeError: ``obj`` is neither an integer (Python's or NumPy's) nor bytes.
            OverflowError: The integer has more than 64 bits.
            ValueError: The message can never fit a lane, the timeout is NaN, or the queue is closed here.
            RuntimeError: Every lane belongs to a living producer.
        """

    def put_many(
        self, values: _Int64 | Iterable[SupportsIndex | bytes], block: bool = True, timeout: float | None = None
    ) -> int:
        """Put messages in order; returns how many: fewer than given only after the timeout. Raises as ``put``."""

    def get(self, block: bool = True, timeout: float | None = None) -> int | bytes:
        """Take one message.

        Raises:
            queue.Empty: There was none within ``timeout`` seconds (None: for ever), or, without ``block``, another
                consumer was waiting for it.
            ValueError: The timeout is NaN or the queue is closed here.
        """

    def get_many(self, max_items: int = ..., block: bool = True, timeout: float | None = None) -> list[int | bytes]:
        """Take up to ``max_items`` messages that have arrived, waiting for the first as ``get`` does; raises as ``get``."""

    def get_many_into(self, out: _Int64, block: bool = True, timeout: float | None = None) -> int:
        """Take integers into ``out [n]`` int64; returns how many, 0 after the timeout.

        Bytes stay where they are: what was put before them by the same producer is taken first.

        Raises:
            TypeError: ``out`` is no writable one-dimensional int64 array, or only bytes are next.
            ValueError: ``out`` is empty, the timeout is NaN, or the queue is closed here.
        """

    def qsize(self) -> int:
        """Messages put and not yet taken. While another consumer is at it, their words instead."""

    def empty(self) -> bool:
        """Whether no message is there."""

    def full(self) -> bool:
        """Whether this producer's lane has no space for an integer."""

    def close(self) -> None:
        """Give this producer's lane back; further use in this process raises ValueError."""

class SumTree:
    """The priorities of a replay, drawn from in proportion, in memory shared between processes.

    A tree of sums with ``fanout`` children a node over ``capacity`` leaves. A leaf of priority 0 is never drawn. One lock
    makes each method one step for all threads and processes; when a process dies with it, the next one recomputes the
    sums. Methods that take it release the GIL, and raise ``RuntimeError`` after waiting a minute for it,
    because its holder is stopped. An object is a view of the memory and survives a fork. The same priorities give the
    same sums and draws on every machine, to the bit.

    Args:
        memory: Writable memory shared by the processes, such as an ``mmap``, of at least ``nbytes`` bytes; its start must
            be a multiple of 64 bytes. It is kept alive.
        capacity: Leaves, 1 or more; need be no power of anything.
        fanout: Children of a node: 2, 4, 8, ... 256. 16 fills a cache line.
        minimum: Whether to keep the least positive priority too, for ``normalise="global"``.
        create: Whether to write a fresh tree of zeros (one process, before the others attach) or to attach to the one
            there.

    Raises:
        ValueError: The memory is too small or misaligned, or holds no tree, another version's, or one of another
            geometry.
    """

    def __init__(
        self, memory: Buffer | _Array, capacity: int, fanout: int = 16, *, minimum: bool = False, create: bool
    ) -> None: ...
    @staticmethod
    def nbytes(capacity: int, fanout: int = 16, minimum: bool = False) -> int:
        """Bytes of memory for a tree: 4.3 a leaf with fanout 16.

        Raises:
            ValueError: ``capacity`` or ``fanout`` is out of range.
        """

    @property
    def capacity(self) -> int:
        """Leaves."""

    @property
    def fanout(self) -> int:
        """Children of a node."""

    @property
    def repairs(self) -> int:
        """How often the tree of a process that died with the lock was repaired."""

    @property
    def max_priority(self) -> float:
        """The largest priority ever stored, which new items get; 1 at first.

        Set it to change that. Raises ValueError for what is no priority.
        """

    @max_priority.setter
    def max_priority(self, value: float) -> None: ...
    def assign(self, leaves: _Int64, priorities: _Float32) -> None:
        """Set ``priorities [n]`` of ``leaves [n]``; of equal leaves the last stays. Raises ``max_priority`` if exceeded.

        Raises:
            TypeError: An array is not one-dimensional, C-contiguous and of its dtype.
            ValueError: The lengths differ, or a priority is NaN, negative or above 2^64; nothing has been changed.
            IndexError: There is no such leaf; nothing has been changed.
        """

    def fill(self, first: int, count: int, priority: float | None = None) -> None:
        """Set leaves ``first`` to ``first + count - 1`` to one priority, by default ``max_priority``.

        Raises:
            ValueError: ``priority`` is NaN, negative or above 2^64.
            IndexError: There are no such leaves.
        """

    def update(
        self,
        leaves: _Int64,
        td_errors: _Float32,
        *,
        alpha: float,
        epsilon: float,
        decay: float = 1.0,
    ) -> None:
        """Set the priorities that TD errors give, ``(|td_error| + epsilon) ** alpha`` (Schaul et al. 2016, section 3.3).

        Args:
            leaves: ``[n]``, as drawn.
            td_errors: ``[n]``.
            alpha: 0 (uniform) or more.
            epsilon: 0 or more.
            decay: What ``max_priority`` is multiplied by before; not to below the priority of an error of 0.

        Raises:
            TypeError: An array is not one-dimensional, C-contiguous and of its dtype.
            ValueError: The lengths differ, a number is out of range, or an error gives no priority (NaN, infinite, above
                2^64, or too small for float32); nothing has been changed.
            IndexError: There is no such leaf; nothing has been changed.
        """

    def sample(
        self,
        random: _UInt64,
        leaves: _Int64,
        priorities: _Float32,
        weights: _Float32 | None = None,
        *,
        beta: float = 0.0,
        normalise: Literal["batch", "global", "none"] = "batch",
        num_items: int | None = None,
        stratified: bool = False,
    ) -> float:
        """Draw leaves with probability ``priority / total``, and their importance weights, from one state of the tree.

        The weights are ``(num_items * priority / total) ** -beta`` (Schaul et al. 2016, section 3.4), divided by their
        greatest: of this batch, or of all leaves.

        Args:
            random: ``[2]``: a seed and a counter, which advances by one for each leaf drawn. One thread's own.
            leaves: ``[n]``, filled.
            priorities: ``[n]``, filled with the priorities of ``leaves``.
            weights: ``[n]``, filled.
            beta: 0 (weights of 1) or more.
            normalise: What the weights are divided by. ``"global"`` needs a tree with ``minimum``.
            num_items: N of the weights; only ``normalise="none"`` needs it.
            stratified: Whether to draw leaf i from the i-th of n equal parts of the total (appendix B.2.1) instead of
                independently.

        Returns:
            The total of all priorities; 0 if there is nothing to draw, and then nothing has been filled.

        Raises:
            TypeError: An array is not one-dimensional, C-contiguous, writable and of its dtype.
            ValueError: The lengths differ, a number is out of range, or ``normalise`` lacks what it needs.
        """

    def find(self, masses: _Float64, leaves: _Int64) -> bool:
        """Find the first leaf where the sum of the priorities up to it, itself included, exceeds each mass.

        A mass of the total or more ends at the last leaf with a priority.

        Args:
            masses: ``[n]``, 0 or more.
            leaves: ``[n]``, filled.

        Returns:
            False if all priorities are 0; nothing has been filled then.

        Raises:
            TypeError: An array is not one-dimensional, C-contiguous and of its dtype.
            ValueError: The lengths differ, or a mass is negative or NaN.
        """

    def total(self) -> float:
        """The sum of all priorities."""

    def minimum(self) -> float:
        """The least positive priority; 0 if there is none. Raises ValueError without ``minimum=True``."""

    def priority(self, leaf: int) -> float:
        """One priority; takes no lock. Raises IndexError if there is no such leaf."""

    def priorities(self, out: _Float32, first: int = 0) -> None:
        """Copy the priorities of leaves ``first`` to ``first + len(out) - 1``, all of one moment.

        Raises:
            TypeError: ``out`` is no writable one-dimensional float32 array.
            IndexError: There are no such leaves.
        """

    def rebuild(self) -> None:
        """Recompute every sum from the leaves."""

    def verify(self) -> bool:
        """Whether every sum is, to the bit, what ``rebuild`` would make it."""

    def use_instructions(self, most: Literal["scalar", "avx2", "avx512"]) -> None:
        """Let this object use no instructions beyond these; the results are the same. Raises ValueError for others."""

class RingShape:
    """What the bytes of a :class:`ReplayRing` depend on.

    Args:
        capacity: Rows.
        fields: For each field the format of its entries (of the buffer protocol), the shape of a row, and whether batches
            have it of the row that they bootstrap from, too.
        linked: Whether rows are steps of environments.
        reward: Which field rewards are, with ``linked``; else -1.
        n_step: Rewards that are added up.
        discount: Of each later one.
        fanout: Of the sum tree.
        minimum: Whether the tree keeps the least priority.
    """

    def __init__(
        self,
        *,
        capacity: int,
        fields: list[tuple[str, list[int], bool]],
        linked: bool,
        reward: int,
        n_step: int,
        discount: float,
        fanout: int,
        minimum: bool,
    ) -> None: ...
    @property
    def nbytes(self) -> int:
        """Bytes of memory. Raises ValueError if a number is out of range."""

class ReplayRing:
    """A ring of transitions with a sum tree over it: the core of :class:`rollmill.replay.PrioritizedReplay`.

    A transition's fields lie next to each other in one record. With ``linked`` a row is a step of an environment and knows
    the next one; see ``cpp/core/replay_ring.h``. Methods release the GIL while they work, and raise ``RuntimeError`` when
    they time out acquiring a lock after a minute, because its holder is stopped. Arrays that are not C-contiguous, or not
    of the declared dtype and shape, are not converted: methods then return -1.

    Args:
        memory: Writable memory shared by the processes, of at least ``shape.nbytes`` bytes, zero at first; its start must
            be a multiple of 64 bytes. It is kept alive.
        shape: The same in every process.
        num_envs: Environments whose steps this object adds.
        seed: Of the draws; each object, and each child process, draws from a stream of its own.
        shared: Whether a forked child has the same memory. If not, what it calls raises ValueError.
        create: Whether to write an empty ring (one process, before the others attach) or to attach to the one there.

    Raises:
        ValueError: The memory is too small or misaligned, or holds no ring of this shape, or a number is out of range.
    """

    def __init__(
        self, memory: Buffer | _Array, shape: RingShape, *, num_envs: int, seed: int, shared: bool, create: bool
    ) -> None: ...
    def configure(self, *, alpha: float, epsilon: float, decay: float, weights: str, stratified: bool) -> None:
        """Set how this object draws and updates.

        Args:
            alpha: Exponent of priorities.
            epsilon: Added to errors.
            decay: What the highest priority is multiplied by before each update.
            weights: ``"ones"``, or what they are divided by: ``"batch"``, ``"global"``, ``"none"``.
            stratified: As for :meth:`SumTree.sample`.

        Raises:
            ValueError: ``weights`` is something else.
        """

    def add(self, columns: tuple[Any, ...]) -> int:
        """Append independent transitions, an array ``[n, ...]`` for each field; returns how many, or -1."""

    def add_step(
        self,
        columns: tuple[Any, ...],
        next_columns: tuple[Any, ...],
        terminated: Any,
        truncated: Any,
        valid: Any,
    ) -> int:
        """Append a step of each environment.

        Args:
            columns: ``[num_envs, ...]`` for each field.
            next_columns: Likewise for each field that has a next; read where an episode ends.
            terminated: bool ``[num_envs]``.
            truncated: Likewise, or None.
            valid: Likewise, or None. Where it is False there is no step.

        Returns:
            How many rows that took, or -1.

        Raises:
            RuntimeError: Timed out acquiring a lock. The next step then does not follow the last one.
        """

    def interrupt(self) -> None:
        """Say that the next steps do not follow the last ones."""

    def adopt(
        self,
        batch: object,
        watched: list[Any],
        tickets: _Int64,
        weights: _Float32,
        returns: tuple[_Array, ...],
        columns: tuple[_Array | None, ...],
        next_columns: tuple[_Array | None, ...],
    ) -> None:
        """Keep arrays that :meth:`sample` draws into whenever no caller holds them.

        Args:
            batch: Holds all arrays, one reference to each; what ``sample`` returns.
            watched: Objects that ``batch`` holds besides.
            tickets: int64 ``[B]``.
            weights: float32 ``[B]``.
            returns: With ``linked`` reward, float32 ``[B]``, discount, likewise, and terminated, bool; else empty.
            columns: ``[B, ...]`` for each field; None for the reward of linked rows.
            next_columns: For each field that has a next, else None.
        """

    def sample(self, batch_size: int, beta: float) -> object:
        """Draw into arrays of this size that no caller holds.

        Returns:
            The ``batch`` that was adopted with them; None if there are none, False if there is nothing to draw.

        Raises:
            ValueError: ``beta`` is out of range.
        """

    def update(self, tickets: Any, values: Any, are_priorities: bool = False) -> int:
        """Set priorities.

        Args:
            tickets: int64 ``[n]``.
            values: float32 ``[n]``: TD errors, or priorities.
            are_priorities: Which.

        Returns:
            How many of the transitions no longer exist; -1 for other arrays.

        Raises:
            ValueError: An error is not finite, or gives no priority above 0; nothing was changed.
        """

    def restore(self, given: int, priorities: _Float32, maximum: float) -> None:
        """Take over the priorities of a ring that had given out ``given`` rows; requires exclusive use.

        Tickets are raised by whole laps above all that this ring has given out.
        """

    def flush(self) -> None:
        """Write the memory, which is mapped from a file, to the disk, with a flag that the next change clears."""

    @property
    def is_flushed(self) -> bool:
        """Whether nothing was changed since it was flushed."""

    def check_process(self) -> None:
        """Raise ValueError in a forked child if the memory is not shared with it."""

    def reset_locks(self) -> None:
        """Release locks whose holders ended with the machine; requires exclusive use."""

    def priorities(self, out: _Float32) -> tuple[int, int, float]:
        """Copy all priorities ``[capacity]``, in blocks; the lock is released between them.

        Returns:
            How many rows were given out before; after; and the highest priority so far. Of rows that were given out
            in between it may be the priority of before or after.
        """

    def verify(self) -> bool:
        """Whether every sum of the tree is right."""

    @property
    def given(self) -> int:
        """Rows ever given out: the next ticket."""

    @property
    def live(self) -> int:
        """Transitions that can be drawn."""

    @property
    def max_priority(self) -> float:
        """What new transitions get."""

    @property
    def lookahead(self) -> int:
        """Steps that must follow one before it can be drawn, if its episode has not ended."""

    @property
    def stride(self) -> int:
        """Bytes of a record."""

    @property
    def records_at(self) -> int:
        """Where in the memory the first record is."""

class ReplaySlots:
    """Replay over slots: which of their steps can be drawn now, and what a drawn step is a transition to.

    Leaf ``(slot * T + t) * B + row`` of the tree stands for a step. It is 0 while it is written and when it was evicted,
    and gets the largest priority when the last step that it needs is committed. ``begin``, ``commit`` and ``evict`` are for
    the process that writes the slot, the rest is for anybody; methods that take the tree's lock release the GIL. See
    ``cpp/core/replay_slots.h``.

    Args:
        trees: For each policy, the memory of a :class:`SumTree` with ``num_slots * rollout_length * rows`` leaves. Kept
            alive, as all arrays.
        rollout_length: T.
        rows: B.
        n_step: Rewards that are added up, 1 to T.
        history: How many observations before x_t are shown with it, 0 to T.
        reward: float32 ``[num_slots, T, B]``.
        terminated: bool, likewise.
        truncated: bool, likewise.
        valid: bool, likewise.
        reset: bool ``[num_slots, T + 1, B]``.
        generation: ``[num_slots]``: of each slot; grows with each eviction.
        next: ``[num_slots]``: links, -1 for none.
        previous: ``[num_slots]``: likewise.
        window: W, ``n_step`` to T: what is drawn are W steps in a row, whatever ends in between; 0: single transitions.
        stride: Steps from the start of one window to the next; divides T. The leaves in between stay 0.
        acts: bool ``[num_slots, T + 1, B]``: whether the row acts at x_t; None where every row acts at every step. Steps
            at which it does not are transparent: transitions lead from one turn of the row to a later one, and those that
            do not lie in two slots never become live. Needs ``history`` and ``window`` 0.
        policy: int16 ``[num_slots, T + 1, B]``: who acts, which changes only where an episode begins. A step becomes live
            in the tree of this index; in none if there is no such tree. None with one tree: all steps are of the first.

    Raises:
        ValueError: A shape or a number does not fit the others.
    """

    def __init__(
        self,
        trees: Sequence[Buffer | _Array],
        *,
        rollout_length: int,
        rows: int,
        n_step: int,
        history: int,
        reward: _Float32,
        terminated: _Array,
        truncated: _Array,
        valid: _Array,
        reset: _Array,
        generation: _Int64,
        next: _Int64,
        previous: _Int64,
        window: int = 0,
        stride: int = 1,
        acts: _Array | None = None,
        policy: _Int16 | None = None,
    ) -> None: ...
    def begin(self, slot: int, previous: int) -> None:
        """A free slot begins as the successor of ``previous`` (-1: of none). Raises IndexError for what is no slot."""

    def commit(self, slot: int, step: int, pending: _Int64, counts: _Int64 | None = None) -> int:
        """Step ``step`` and the observation after it stand in the slot: what misses nothing now becomes live.

        Args:
            slot: The slot.
            step: 0 to T - 1.
            pending: ``[B]``, the group's own: steps of each row that wait for later ones; 0 at first.
            counts: ``[num_trees]``, gets how many steps of each policy were valid. Needed with several trees.

        Returns:
            How many rows' steps were valid, of all policies with a tree.
        """

    def evict(self, slot: int) -> None:
        """Take a slot, and the neighbours' steps that need it, out of the replay; it may be written over afterwards."""

    def sample(self, random: _UInt64, batch: SlotBatch, rule: DrawRule, beta: float, num_items: int) -> bool:
        """Fill a batch with draws by priority; what is overwritten while it is copied is drawn again.

        Args:
            random: ``[2]``: see :meth:`SumTree.sample`.
            batch: Of this replay; one thread at a time.
            rule: How to draw.
            beta: Exponent of the weights.
            num_items: N of the weights; only ``weights="none"`` needs it.

        Returns:
            False if nothing is live; the arrays are not to be read then.

        Raises:
            ValueError: ``weights="global"`` needs a tree with ``minimum``.
        """

    def update(self, batch: SlotBatch, td_errors: _Float32, *, alpha: float, epsilon: float, decay: float) -> int:
        """Set the priorities of a batch as it was drawn; see :meth:`SumTree.update`.

        Returns:
            How many samples were skipped, because they have been evicted since.
        """

class SlotBatch:
    """Arrays that :meth:`ReplaySlots.sample` fills, N samples each, kept alive.

    Transitions are from x_t to x_{t+k}. What windows have a time axis for, has it in front: the last ``L + n_step - 1``
    steps of a window are the L that are learned from, and those that their rewards are added up over.

    Args:
        slots: The replay.
        leaf: ``[N]``: of the first steps.
        weight: ``[N]``: importance weights.
        reward: ``[N]``, of windows ``[L, N]``: sums of up to ``n_step`` discounted rewards; 0 where a step is not valid.
        discount: Likewise: the factor of the value that is bootstrapped from, 0 where the episode terminated.
        then: ``[L, N]``, windows only: which of the W + 1 observations is bootstrapped from.
        copies: An array of the batch; a shared array, slot after slot; which of its entries; and for stacks of frames, the
            oldest first, what stands for frames before an episode's first: that one again (``"repeat"``), or zeros. The
            entries are ``"cells"`` (x_t, or all W + 1 observations of a window), ``"steps"`` (the step, or all W of them),
            of transitions ``"next_cells"`` (x_{t+k}), of windows ``"learned_steps"`` and ``"states"`` (the state before the
            first step, where each slot has one before every ``stride``-th step).
        tree: Index of the tree that it is drawn from.

    Raises:
        TypeError: An array is not C-contiguous, or not writable.
        ValueError: A shape does not fit, the entries are others, or there is no such tree.
    """

    def __init__(
        self,
        slots: ReplaySlots,
        *,
        leaf: _Int64,
        weight: _Float32,
        reward: _Float32,
        discount: _Float32,
        then: _Int64 | None = None,
        copies: Sequence[tuple[_Array, _Array, str, Literal["zero", "repeat"] | None]],
        tree: int = 0,
    ) -> None: ...

class DrawRule:
    """How :meth:`ReplaySlots.sample` draws.

    Args:
        gamma: Discount of each step.
        reward_scale: Factor on each reward.
        reward_clip: Largest magnitude of a scaled reward.
        weights: What the weights are divided by; see :meth:`SumTree.sample`. ``"ones"``: there are none.
        stratified: See :meth:`SumTree.sample`.

    Raises:
        ValueError: ``weights`` is something else.
    """

    def __init__(
        self,
        *,
        gamma: float,
        reward_scale: float,
        reward_clip: float,
        weights: Literal["ones", "batch", "global", "none"],
        stratified: bool,
    ) -> None: ...

def tree_alignment(
    *, capacity: int, fanout: int, offset: int, batch: int, inserted: int, seconds: float
) -> tuple[float, float, float]:
    """Measure a sum tree whose levels begin ``offset`` bytes after the start of a cache line; 0 is how ours lies.

    Args:
        capacity: Leaves.
        fanout: Children of a node.
        offset: A multiple of 4, below 64.
        batch: Leaves of a search and of an update.
        inserted: Leaves in a row that are inserted: 0 while they would be written, then a priority.
        seconds: How long.

    Returns:
        Median microseconds of the search for a batch, of its update and of an insertion, one thread, without a lock.

    Raises:
        ValueError: A number is out of range.
    """

def replay_load(
    locking: Literal["robust", "none", "nested", "sharded", "global", "over_write"],
    num_workers: int,
    *,
    processes: bool,
    seconds: float,
    capacity: int,
    row_bytes: int,
    insert_rows: int = 64,
    batch: int = 256,
) -> dict[str, dict[str, float]]:
    """Measure a prioritised replay under load: each worker inserts, samples and gathers, and updates, in turn.

    Args:
        locking: What keeps the workers apart: ``"robust"`` is what ``SumTree`` does; the others are what it was chosen
            over (``cpp/benchmarks/replay_locking.h``).
        num_workers: Threads or processes.
        processes: Which of the two.
        seconds: How long.
        capacity: Rows, a multiple of ``8 * insert_rows``; all are filled beforehand.
        row_bytes: Bytes of a row.
        insert_rows: Rows of an insertion.
        batch: Rows of a sample and of an update.

    Returns:
        For ``"insert"`` (with the write of the data), ``"sample"`` (with the gather) and ``"update"``: ``"per_second"``,
        of all workers together, and the latencies ``"p50_us"``, ``"p99_us"`` and ``"p999_us"``, to about 4 %.

    Raises:
        ValueError: A number is out of range, or there is no such locking.
        RuntimeError: A process could not be started.
    """

def gather(dst: _Array, src: _Array, index: _Int64) -> None:
    """Copy rows: ``dst[m] = src[index[m]]``.

    Args:
        dst: ``[M, ...]``, C-contiguous, any dtype; must not overlap ``src``.
        src: ``[R, ...]``, C-contiguous, any dtype with as many bytes a row.
        index: ``[M]`` int64, 0 to R - 1.

    Raises:
        TypeError: An array is not C-contiguous or has the wrong dtype.
        ValueError: The rows differ in bytes, or ``dst`` and ``index`` in length.
        IndexError: An index is out of range; nothing has been copied.
    """

def gather_trajectories(dst: _Array, src: _Array, segments: _Int64, steps: int) -> None:
    """Build a time-major batch: ``dst[t, column:column + n] = src[slot, t, row0:row0 + n]`` for each segment.

    Args:
        dst: ``[T, N, ...]``, C-contiguous; must not overlap ``src``.
        src: ``[num_slots, T', B, ...]``, C-contiguous, with as many bytes a row.
        segments: ``[S, 4]`` int64: slot, row0, n, column.
        steps: Steps copied, from 0 to the smaller of T and T'.

    Raises:
        TypeError: An array is not C-contiguous, or ``segments`` no int64 array ``[S, 4]``.
        ValueError: The rows differ in bytes, an array has too few axes, or ``steps`` is out of range.
        IndexError: A segment is out of range; nothing has been copied.
    """

def gather_images(
    dst: _Array, src: npt.NDArray[np.uint8], index: _Int64, *, channels_first: bool, scale: float
) -> None:
    """Copy images into a floating-point batch, channels last: ``dst[m] = scale * src[index[m]]``.

    Args:
        dst: ``[M, H, W, C]`` float32, or uint16 for the bits of bfloat16 (rounded to nearest even). Its transpose
            ``(0, 3, 1, 2)`` is what torch calls ``channels_last``.
        src: ``[R, C, H, W]`` when ``channels_first``, else ``[R, H, W, C]``; uint8.
        index: ``[M]`` int64, 0 to R - 1.
        channels_first: How ``src`` is laid out.
        scale: Factor, for example ``1 / 255``; used as float32.

    Raises:
        TypeError: An array is not C-contiguous or has the wrong dtype.
        ValueError: The shapes do not match.
        IndexError: An index is out of range; nothing has been copied.
    """

def push_frames(stacks: npt.NDArray[np.uint8], frames: npt.NDArray[np.uint8], fresh: npt.NDArray[np.bool_]) -> None:
    """Shrink each frame by area and push it onto its stack; the oldest there gives way.

    Every new pixel is the mean of the area that it covers, computed in integers and rounded to nearest, halves upwards
    (``cv2.INTER_AREA`` computes the same in float32, so that its halves may fall either way).

    Args:
        stacks: ``[N, depth, h, w]``, oldest first.
        frames: ``[N, H, W]``, at most 65,535 pixels each; ``h <= H`` and ``w <= W``.
        fresh: ``[N]``; where True, the frames before the new one are zeros.

    Raises:
        TypeError: An array is not C-contiguous or has the wrong dtype.
        ValueError: The shapes do not match, or a frame would not shrink.
    """

def activate(x: _Array, kind: Literal["relu", "elu"]) -> None:
    """Apply an activation function in place; NaN stays NaN.

    Args:
        x: Any shape; float32, or uint16 for the bits of bfloat16.
        kind: ReLU, or ELU with alpha 1.

    Raises:
        TypeError: ``x`` is not C-contiguous, not writable or has the wrong dtype.
        ValueError: Another kind.
    """

def activation_gradient(dst: _Array, gradient: _Array, output: _Array, kind: Literal["relu", "elu"]) -> None:
    """Compute ``dst = gradient * f'(x)`` from ``output = f(x)``.

    Args:
        dst: Float32, or uint16 for the bits of bfloat16; overlaps neither of the others.
        gradient: As many elements of the same dtype.
        output: Likewise.
        kind: As in ``activate``.

    Raises:
        TypeError: An array is not C-contiguous or has the wrong dtype.
        ValueError: The sizes differ, or another kind.
    """

def snapshot_write(header: _Int64, dst: _Array, src: _Array, version: int | None = None) -> None:
    """Publish ``src`` as the new contents of the shared block ``dst``. One writer at a time.

    Args:
        header: ``[2]`` int64 in shared memory, zero at first: the sequence (odd while a write is going on) and the version.
        dst: The shared block, any dtype, C-contiguous, starting at a multiple of 8 bytes.
        src: As many bytes.
        version: What ``snapshot_read`` will return, 0 or greater; one more than the last by default.

    Raises:
        TypeError: An array is not C-contiguous (or ``dst`` not writable), or ``header`` not int64.
        ValueError: ``header`` has not 2 entries, the sizes differ, ``dst`` is misaligned or ``version`` is negative.
    """

def snapshot_read(header: _Int64, dst: _Array, src: _Array) -> int:
    """Copy the shared block ``src`` to ``dst``.

    Returns:
        Its version; -1 when a write overlapped: ``dst`` then holds rubbish, and the caller tries again.

    Raises:
        TypeError: As for ``snapshot_write``, with ``dst`` the one that must be writable.
        ValueError: As for ``snapshot_write``.
    """

def atomic_load(array: _Int64, index: int) -> int:
    """``array[index]``, sequentially consistent with the other atomics. Raises IndexError, and TypeError for no int64."""

def atomic_store(array: _Int64, index: int, value: int) -> None:
    """Set ``array[index]``; raises as ``atomic_load``."""

def atomic_add(array: _Int64, index: int, delta: int) -> int:
    """Add ``delta`` to ``array[index]``; returns what was there before; raises as ``atomic_load``."""

def atomic_compare_exchange(array: _Int64, index: int, expected: int, desired: int) -> bool:
    """Set ``array[index]`` to ``desired`` if it is ``expected``; returns whether; raises as ``atomic_load``."""
