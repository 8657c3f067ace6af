"""The place of a program among the ranks that torchrun starts."""

from __future__ import annotations

import re

import pytest

from rollmill.runtime.ranks import Ranks, RanksError


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
