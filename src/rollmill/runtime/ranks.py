"""The rank of this program among several that cooperate, as ``torchrun`` sets it. Imports no torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rollmill.settings.fields import setting
from rollmill.settings.value_checks import ABOVE_ZERO, Checked


@dataclass(frozen=True, kw_only=True)
class DistributedConfig(Checked, section="distributed"):
    """Ranks that train one policy together, started by torchrun: in lockstep and in the replay regime.

    Attributes:
        timeout_s: A rank that is waited for longer counts as lost, and the run ends. It has to be longer than what
            one rank may need more than another for an iteration, or for building its environments.
    """

    timeout_s: float = setting(300.0, ABOVE_ZERO, "(seconds)")


class RanksError(ValueError):
    """The environment variables of a distributed run are inconsistent, or do not fit this run."""


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This program's place among those that train one policy together; each has its own environments and processes.

    Attributes:
        rank: 0 .. ``world_size`` - 1.
        world_size: How many there are, over all machines.
        local_rank: 0 .. ``local_world_size`` - 1.
        local_world_size: How many there are on this machine.
        restarts: How often the run was started again after a failure.
        runs_before: Runs that this program has made before.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    restarts: int = 0
    runs_before: int = 0

    @classmethod
    def of_this_process(cls, environment: Mapping[str, str] = os.environ) -> Ranks:
        """Reads what ``torchrun`` has set; a single rank if it has not.

        Raises:
            RanksError: Some of its variables are missing, or are no numbers that fit together.
        """
        if "RANK" not in environment or "WORLD_SIZE" not in environment:
            return cls()
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        if missing := [name for name in (*names, "MASTER_ADDR", "MASTER_PORT") if name not in environment]:
            raise RanksError(
                f"RANK and WORLD_SIZE are set, but not {', '.join(missing)}: start with torchrun, or unset them"
            )
        try:
            rank, world_size, local_rank, local_world_size = (int(environment[name]) for name in names)
            restarts = int(environment.get("TORCHELASTIC_RESTART_COUNT", "0"))
        except ValueError as error:
            raise RanksError(f"the variables of torchrun are no numbers ({error}): start with torchrun") from error
        if not (0 <= rank < world_size and 0 <= local_rank < local_world_size <= world_size):
            raise RanksError(
                f"RANK={rank} of WORLD_SIZE={world_size}, LOCAL_RANK={local_rank} of LOCAL_WORLD_SIZE="
                f"{local_world_size}: these do not fit together; start with torchrun"
            )
        return cls(
            rank=rank,
            world_size=world_size,
            local_rank=local_rank,
            local_world_size=local_world_size,
            restarts=restarts,
        )

    @property
    def is_alone(self) -> bool:
        """Whether this is the only rank."""
        return self.world_size == 1

    @property
    def is_one_host(self) -> bool:
        """Whether all ranks are on this machine, as ``torchrun`` sets it."""
        return self.local_world_size == self.world_size

    def share(self, number: int) -> range:
        """This rank's share of ``number`` things that are spread equally over the ranks."""
        each = number // self.world_size
        return range(self.rank * each, (self.rank + 1) * each)

    def cores(self, cores: list[int]) -> list[int]:
        """This rank's share of a machine's cores: equal parts, or all of them if there are too few."""
        if self.local_world_size > len(cores):
            return cores
        first, end = (len(cores) * place // self.local_world_size for place in (self.local_rank, self.local_rank + 1))
        return cores[first:end]


def folder_of_rank(run_dir: Path, rank: int) -> Path:
    """The folder of a rank's own files in a run's directory; for rank 0 the directory itself."""
    return run_dir / f"rank-{rank}" if rank else run_dir


class Launcher:
    """The program that has started this one, if that is ``torchrun``, which ranks must not outlive.

    It ends its ranks with SIGTERM. If it is killed itself, no other process ends them. With a wrapper between the two
    (``torchrun --no-python ./wrapper.sh`` that does not ``exec``), the wrapper is watched.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        """Records the present parent."""
        self._pid = os.getppid() if "TORCHELASTIC_RUN_ID" in environment else None

    @property
    def is_gone(self) -> bool:
        """Whether it has died; False if there is none."""
        return self._pid is not None and os.getppid() != self._pid
