"""Named lists of tasks that one network learns together (``suite/<name>``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rollmill.envs.errors import UnknownEnvironment
from rollmill.envs.factory import suggest
from rollmill.scores import ATARI_10, ATARI_57, DMLAB_30

FAMILY = "suite"

# Tasks of MiniGrid that PPO solves without a bonus for exploration, each within a few million steps by its own; of each
# kind the smaller ones, two of which (RedBlueDoors, MemoryS7) ask for memory.
_MINIGRID = (
    "Empty-8x8-v0", "DistShift1-v0", "DoorKey-5x5-v0", "DoorKey-6x6-v0", "Dynamic-Obstacles-6x6-v0", "FourRooms-v0",
    "LavaGapS6-v0", "LavaCrossingS9N1-v0", "SimpleCrossingS9N1-v0", "MultiRoom-N2-S4-v0", "Unlock-v0",
    "KeyCorridorS3R1-v0", "RedBlueDoors-6x6-v0", "MemoryS7-v0", "PutNear-6x6-N2-v0", "GoToObject-6x6-N2-v0",
)  # fmt: skip
# The scenarios of one player that ViZDoom brings, apart from its variants of the same map.
_VIZDOOM = (
    "basic", "deadly_corridor", "defend_the_center", "defend_the_line", "health_gathering", "health_gathering_supreme",
    "my_way_home", "predict_position", "take_cover",
)  # fmt: skip


def _metaworld() -> Sequence[str]:
    from rollmill.envs import envpool

    return [f"envpool/{id}" for id in envpool.ids() if id.startswith("MetaWorld/")]


_SUITES: dict[str, Callable[[], Sequence[str]]] = {
    "atari10": lambda: ATARI_10,
    "atari57": lambda: ATARI_57,
    "dmlab30": lambda: DMLAB_30,
    "metaworld": _metaworld,
    "minigrid": lambda: [f"minigrid/MiniGrid-{id}" for id in _MINIGRID],
    "vizdoom": lambda: [f"vizdoom/{id}" for id in _VIZDOOM],
}


def names() -> list[str]:
    """Names of the suites, without ``suite/``."""
    return list(_SUITES)


def tasks_of(name: str) -> tuple[str, ...]:
    """Return the tasks that a name stands for; empty if it is that of a single environment.

    Args:
        name: ``suite/<name>``, or names of environments and suites joined by commas.

    Raises:
        UnknownEnvironment: No such suite, an empty name, or one that comes twice.
    """
    if "," in name:
        found: list[str] = []
        for part in map(str.strip, name.split(",")):
            if not part:
                raise UnknownEnvironment(f"the list of tasks {name!r} has an empty name: join names by single commas")
            found += tasks_of(part) or (part,)
        for task in found:
            if found.count(task) > 1:
                raise UnknownEnvironment(f"the list of tasks {name!r} has {task!r} twice: name each task once")
        return tuple(found)
    family, _, id = name.partition("/")
    if family != FAMILY:
        return ()
    if id not in _SUITES:
        raise UnknownEnvironment(f"there is no suite {id!r}{suggest(id, _SUITES)}; suites are {', '.join(_SUITES)}")
    return tuple(_SUITES[id]())
