"""The typed door to the C++ core: shared-memory rings and sum trees, row copies, weight snapshots and atomic words.

Everything here works on memory that the caller owns (NumPy arrays, mmaps), holds no global state, knows no torch and is
documented in ``_core.pyi``. Whatever waits or copies much does so without the GIL.

* :class:`LaneRing` passes integers from many producers to one consumer, between processes.
* :class:`MessageLanes` is the core of :class:`rollmill.ring.Queue`; use that.
* :class:`SumTree` holds a replay's priorities and draws in proportion to them, between processes.
* :class:`ReplaySlots` says which steps of which slots can be drawn, and draws them into a :class:`SlotBatch` by a
  :class:`DrawRule`.
* :class:`ReplayRing` is the core of :class:`rollmill.replay.PrioritizedReplay`; use that.
* :func:`gather`, :func:`gather_trajectories` and :func:`gather_images` build batches out of slots.
* :func:`push_frames` shrinks frames and stacks them.
* :func:`activate` and :func:`activation_gradient` compute activation functions in place, in float32 and bfloat16.
* :func:`snapshot_write` and :func:`snapshot_read` publish a block of memory that is read whole or not at all.
* :func:`atomic_load`, :func:`atomic_store`, :func:`atomic_add` and :func:`atomic_compare_exchange` work on one shared
  word.
* :func:`replay_load` measures a replay under load, :func:`tree_alignment` its tree, for ``rollmill bench``.
"""

from rollmill.native._core import (
    DrawRule,
    LaneRing,
    MessageLanes,
    ReplayRing,
    ReplaySlots,
    RingShape,
    SlotBatch,
    SumTree,
    activate,
    activation_gradient,
    atomic_add,
    atomic_compare_exchange,
    atomic_load,
    atomic_store,
    gather,
    gather_images,
    gather_trajectories,
    push_frames,
    replay_load,
    snapshot_read,
    snapshot_write,
    tree_alignment,
)

# K of a SumTree: what it takes.
FANOUTS = (2, 4, 8, 16, 32, 64, 128, 256)

__all__ = [
    "FANOUTS",
    "DrawRule",
    "LaneRing",
    "MessageLanes",
    "ReplayRing",
    "ReplaySlots",
    "RingShape",
    "SlotBatch",
    "SumTree",
    "activate",
    "activation_gradient",
    "atomic_add",
    "atomic_compare_exchange",
    "atomic_load",
    "atomic_store",
    "gather",
    "gather_images",
    "gather_trajectories",
    "push_frames",
    "replay_load",
    "snapshot_read",
    "snapshot_write",
    "tree_alignment",
]
