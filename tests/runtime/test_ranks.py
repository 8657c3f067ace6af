"""The place of a program among the ranks that torchrun starts."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from rollmill.runtime.ranks import Launcher, Ranks, RanksError, folder_of_rank


def test_the_variables_of_torchrun_are_checked() -> None:
    assert Ranks.of_this_process({}).is_alone
    good = {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "a",
        "MASTER_PORT": "1",
        "TORCHELASTIC_RESTART_COUNT": "2",
    }
    ranks = Ranks.of_this_process(good)
    assert (ranks.rank, ranks.world_size, ranks.restarts) == (3, 4, 2)
    assert list(ranks.share(8)) == [6, 7]
    assert ranks.cores(list(range(5))) == [2, 3, 4]
    assert ranks.cores([7]) == [7]
    for wrong, message in (
        ({k: v for k, v in good.items() if k != "MASTER_PORT"}, "MASTER_PORT"),
        ({**good, "RANK": "4"}, "do not fit together"),
        ({**good, "RANK": "x"}, "no numbers"),
    ):
        with pytest.raises(RanksError, match=re.escape(message)):
            Ranks.of_this_process(wrong)


def test_without_both_of_its_variables_torchrun_was_not_used() -> None:
    for environment in ({"RANK": "1"}, {"WORLD_SIZE": "2"}):
        assert Ranks.of_this_process(environment) == Ranks()
    alone = Ranks()
    assert alone.is_alone
    assert alone.is_one_host
    assert alone.share(5) == range(5)
    assert alone.cores([3, 5]) == [3, 5]


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [1, 2, 5, 8, 17])
def test_ranks_of_a_machine_share_its_cores(world_size: int, count: int) -> None:
    cores = list(range(10, 10 + count))
    ranks = [Ranks(rank=i, world_size=world_size, local_rank=i, local_world_size=world_size) for i in range(world_size)]
    shares = [rank.cores(cores) for rank in ranks]
    if world_size > count:
        assert shares == [cores] * world_size
    else:
        assert [core for share in shares for core in share] == cores
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
    things = [thing for rank in ranks for thing in rank.share(3 * world_size)]
    assert things == list(range(3 * world_size))


def test_ranks_on_several_machines_are_not_one_host() -> None:
    ranks = Ranks(rank=3, world_size=4, local_rank=1, local_world_size=2)
    assert not ranks.is_one_host
    assert not ranks.is_alone


def test_only_further_ranks_have_a_folder_of_their_own() -> None:
    assert folder_of_rank(Path("runs/a"), 0) == Path("runs/a")
    assert folder_of_rank(Path("runs/a"), 2) == Path("runs/a/rank-2")


def test_a_launcher_is_gone_when_the_parent_is_another() -> None:
    assert not Launcher({}).is_gone
    launcher = Launcher({"TORCHELASTIC_RUN_ID": "1"})
    assert not launcher.is_gone
    # A process that is forked has another parent, like one that is adopted by init after its parent's death.
    pid = os.fork()
    if pid == 0:
        os._exit(10 + launcher.is_gone + 2 * Launcher({}).is_gone)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 11
