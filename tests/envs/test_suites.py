"""Named lists of tasks."""

from __future__ import annotations

import pytest

from rollmill.envs import atari, dmlab, envpool, minigrid, suites, vizdoom
from rollmill.envs.config import EnvConfig
from rollmill.envs.errors import UnknownEnvironment
from rollmill.envs.factory import probe
from rollmill.envs.suites import tasks_of
from rollmill.scores import ATARI_10, ATARI_57, DMLAB_30

EXISTING = {
    "atari": lambda: atari.games(),
    "dmlab": lambda: dmlab.ids(),
    "envpool": lambda: envpool.ids(),
    "minigrid": lambda: minigrid.ids(),
    "vizdoom": lambda: vizdoom.scenarios(),
}


@pytest.mark.parametrize("suite", suites.names())
def test_a_suite_has_environments_that_exist_each_once(suite: str, request: pytest.FixtureRequest) -> None:
    if suite == "dmlab30":
        request.getfixturevalue("lab")
    tasks = tasks_of(f"suite/{suite}")
    assert len(tasks) > 1
    assert len(set(tasks)) == len(tasks)
    (family,) = {task.partition("/")[0] for task in tasks}
    existing = set(EXISTING[family]())
    assert {task.partition("/")[2] for task in tasks} <= existing


@pytest.mark.parametrize(
    ("suite", "number"), [("atari10", 10), ("atari57", 57), ("dmlab30", 30), ("metaworld", 50), ("minigrid", 16)]
)
def test_a_suite_has_as_many_tasks_as_its_name_says(suite: str, number: int) -> None:
    assert len(tasks_of(f"suite/{suite}")) == number


def test_the_suites_of_published_scores_are_those_lists() -> None:
    assert tasks_of("suite/atari10") == tuple(ATARI_10)
    assert tasks_of("suite/atari57") == tuple(ATARI_57)
    assert tasks_of("suite/dmlab30") == tuple(DMLAB_30)
    assert set(tasks_of("suite/atari10")) < set(tasks_of("suite/atari57"))


def test_the_tasks_of_minigrid_share_their_spaces_without_padding() -> None:
    tasks = tasks_of("suite/minigrid")[:3]
    spec = probe(EnvConfig(name="suite/minigrid", tasks=tasks))
    assert spec.observation == spec.tasks[0].observation
    assert not spec.has_action_mask


@pytest.mark.parametrize("name", ["gym/CartPole-v1", "CartPole-v1", "suites/atari10", "atari10", "atari/suite"])
def test_a_single_environment_has_no_tasks(name: str) -> None:
    assert tasks_of(name) == ()


def test_names_joined_by_commas_are_a_list() -> None:
    assert tasks_of("gym/CartPole-v1,gym/Acrobot-v1") == ("gym/CartPole-v1", "gym/Acrobot-v1")
    assert tasks_of(" gym/B , gym/A ,gym/C") == ("gym/B", "gym/A", "gym/C")


def test_a_suite_in_a_list_stands_for_its_tasks_at_its_place() -> None:
    of_suite = tasks_of("suite/vizdoom")
    assert tasks_of("gym/A, suite/vizdoom ,gym/B") == ("gym/A", *of_suite, "gym/B")
    assert tasks_of("suite/atari10,suite/vizdoom") == (*ATARI_10, *of_suite)


@pytest.mark.parametrize("name", ["gym/A,", ",gym/A", "gym/A,,gym/B", ",", "gym/A, ,gym/B"])
def test_an_empty_name_in_a_list_is_refused(name: str) -> None:
    with pytest.raises(UnknownEnvironment, match="has an empty name: join names by single commas") as caught:
        tasks_of(name)
    assert repr(name) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "twice"),
    [
        ("gym/A,gym/B,gym/A", "gym/A"),
        ("gym/A, gym/A", "gym/A"),
        (f"{ATARI_10[3]},suite/atari10", ATARI_10[3]),
        ("suite/atari10,suite/atari57", ATARI_10[0]),
        ("suite/vizdoom,suite/vizdoom", "vizdoom/basic"),
    ],
)
def test_a_task_that_comes_twice_is_refused(name: str, twice: str) -> None:
    with pytest.raises(UnknownEnvironment, match=f"has '{twice}' twice: name each task once"):
        tasks_of(name)


@pytest.mark.parametrize("name", ["suite/atari_10", "gym/A,suite/atari_10"])
def test_an_unknown_suite_is_refused_with_a_similar_one_and_all_of_them(name: str) -> None:
    with pytest.raises(UnknownEnvironment, match=r"no suite 'atari_10'.*did you mean 'atari10'") as caught:
        tasks_of(name)
    assert str(caught.value).endswith(f"; suites are {', '.join(suites.names())}")


@pytest.mark.parametrize("name", ["suite/", "suite"])
def test_a_suite_without_a_name_is_refused(name: str) -> None:
    with pytest.raises(UnknownEnvironment, match=r"there is no suite ''; suites are atari10, "):
        tasks_of(name)
