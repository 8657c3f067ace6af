"""Tournaments of trained and scripted players."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from tests.envs.agent_games import AGENTS, Crowd, Rounds
from tests.evaluation.conftest import MakeRun
from tests.regimes.nim import Nim

import rollmill
from rollmill.envs.config import EnvConfig
from rollmill.envs.errors import EnvironmentFailure
from rollmill.envs.factory import probe
from rollmill.envs.registry import register_env
from rollmill.envs.spaces import action_spec
from rollmill.envs.user_code import NoSuchModuleError
from rollmill.evaluation.players import PLAYERS
from rollmill.evaluation.snapshot import NoRunError, read_snapshot
from rollmill.evaluation.stage import NotRenderableError
from rollmill.evaluation.tournament import (
    TournamentError,
    _mean_of,
    check_opponents,
    games_for_each_seat,
    names_of,
    points_against,
    tournament,
)
from rollmill.evaluation.tournament_result import Score
from rollmill.evaluation.watch import watch
from rollmill.models.config import ModelConfig
from rollmill.models.observation import ENCODERS


def make_perfect() -> Any:
    """Leaves a multiple of four matches if it can, else takes one."""

    def choose(observation: Any, mask: Any) -> int:
        matches = int(np.argmax(observation))
        return max(0, matches % 4 - 1)

    return choose


def make_greedy() -> Any:
    """Takes as many matches as it may."""
    return lambda observation, mask: int(np.flatnonzero(mask)[-1])


class Teams(Crowd):
    """One step, whatever is done: the first agent gets 3, the second one 1 and the third one 2."""

    def step(self, actions: dict[str, int]) -> Any:
        self.agents = []
        rewards = dict(zip(AGENTS, (3.0, 1.0, 2.0), strict=True))
        ended = dict.fromkeys(AGENTS, True)
        return self._seen(AGENTS), rewards, ended, dict.fromkeys(AGENTS, False), {agent: {} for agent in AGENTS}

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed, options)
        self.agents = list(AGENTS)
        return self._seen(AGENTS), {agent: {} for agent in AGENTS}


class Fragile(Teams):
    """The first agent ends after one step, with 3; the others after two, with 1 and 2, unless the match fails."""

    failing = 0

    def step(self, actions: dict[str, int]) -> Any:
        if len(self.agents) < len(AGENTS) and Fragile.failing:
            Fragile.failing -= 1
            raise OSError("killed")
        seen, rewards, ended, cut, infos = super().step(actions)
        if AGENTS[0] in actions:
            self.agents = list(AGENTS[1:])
            ended = {agent: agent == AGENTS[0] for agent in AGENTS}
            rewards = {**rewards, **dict.fromkeys(AGENTS[1:], 0.0)}
        return seen, rewards, ended, cut, infos


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollmill.envs.registry._registered", {})
    monkeypatch.setattr(PLAYERS, "factories", {})
    register_env("test/nim", Nim)
    register_env("test/rounds", Rounds)
    register_env("test/teams", Teams)
    register_env("test/fragile", Fragile)
    rollmill.register_player("perfect", make_perfect)
    rollmill.register_player("greedy", make_greedy)


@pytest.mark.parametrize(
    ("env", "seats", "games"),
    [("test/nim", 2, 32), ("test/rounds", 100, 1), ("vizdoom/duel", 2, 4), ("vizdoom/deathmatch", 8, 1)],
)
def test_matches_of_processes_are_played_a_few_at_a_time(env: str, seats: int, games: int) -> None:
    assert games_for_each_seat(env, seats) == games


def test_opponents_must_store_actions_in_the_same_units(make_run: MakeRun) -> None:
    run = make_run("test/nim")
    spec = probe(EnvConfig(name="test/nim"))
    for box in ("clip", "scale"):  # Choices have no units.
        check_opponents(("random", str(run)), spec, box)
    spec = replace(spec, action=action_spec(gymnasium.spaces.Box(-1.0, 1.0, (1,))))
    check_opponents(("random", str(run)), spec, "clip")
    with pytest.raises(TournamentError, match=r"in other units \(clip\) than this run \(scale\)"):
        check_opponents((str(run),), spec, "scale")


def test_networks_of_ppo_and_dqn_meet(make_run: MakeRun, tmp_path: Path) -> None:
    settings = {"num_envs": 4, "rollout.num_workers": 1, "replay.min_size": 24, "model.mlp_sizes": (8,)}
    other = rollmill.train("test/nim", algo="dqn", run_dir=tmp_path / "dqn", total_steps=60, quiet=True, **settings)
    result = tournament([make_run("test/nim"), other.dir], matches=3)
    assert result.score(0, 1).matches == 6


def test_matches_that_fail_are_played_again(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    rollmill.register_player("idle", lambda: lambda observation, mask: 0)
    snapshot = read_snapshot(make_run("test/fragile", on_failure="restart", restart_budget=5))
    expected = points_against(snapshot, ["idle"], matches=3)
    monkeypatch.setattr(Fragile, "failing", 5)
    with pytest.warns(UserWarning, match=r"^5 failure\(s\) of environments"):
        assert points_against(snapshot, ["idle"], matches=3) == expected
    Fragile.failing = 1
    with pytest.raises(EnvironmentFailure, match="killed"):
        points_against(snapshot._replace(env=replace(snapshot.env, on_failure="stop")), ["idle"], matches=3)


def test_an_agent_that_never_acted_counts_neither_way() -> None:
    assert _mean_of(np.array([-5.0, np.nan])) == -5.0
    assert _mean_of(np.array([np.nan, np.nan])) == 0.0


def test_every_pair_meets_in_every_seat_as_often_as_asked() -> None:
    result = tournament(["perfect", "greedy", "random"], env="test/nim", matches=70, seed=3)
    assert result.players == ("perfect", "greedy", "random")
    assert set(result.scores) == {(a, b, seat) for a in range(3) for b in range(3) if a != b for seat in range(2)}
    assert {score.matches for score in result.scores.values()} == {70}
    # Seven matches: who begins and plays perfectly wins.
    assert result.scores[0, 1, 0] == Score(70, 0, 0)
    assert result.scores[1, 0, 1] == Score(0, 0, 70)
    assert result.score(0, 2).share > 0.8
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert result.scores[one, other, 0] == result.scores[other, one, 1].back
    assert result.ratings[0] > max(result.ratings[1:])
    assert sum(result.ratings) == pytest.approx(0, abs=1e-6)
    text = result.describe()
    assert "perfect against greedy" in text
    assert "as first 1.00" in text


def test_matches_that_were_the_same_game_are_told() -> None:
    result = tournament(["perfect", "greedy", "random"], env="test/nim", matches=6)
    assert len(result.warnings) == 2
    for seat, warning in zip(("first", "second"), result.warnings, strict=True):
        assert warning.startswith(f"all matches of perfect as {seat} against greedy were the same game")
        assert f"warning: {warning}" in result.describe()
    assert result.to_dict()["warnings"] == list(result.warnings)
    # Fewer matches may be equal by chance, and games of others may vary.
    assert tournament(["perfect", "greedy"], env="test/nim", matches=5).warnings == ()
    rollmill.register_player("last", make_greedy)
    assert tournament(["last", "greedy"], env="test/rounds", matches=20).warnings == ()


def test_a_network_with_a_role_plays_all_of_its_agents_against_the_others(make_run: MakeRun) -> None:
    snapshot, seats_of_opponent = read_snapshot(make_run("test/teams")), set()

    def choose(observation: Any, mask: Any) -> int:
        seats_of_opponent.add(int(observation[2]))
        return 0

    rollmill.register_player("seen", lambda: choose)
    # The mean returns of both sides: 2.5 and 1, 2 and 2, 1.5 and 3.
    for seats, expected in (((0, 2), 1.0), ((0, 1), 0.5), ((1, 2), 0.0)):
        assert points_against(snapshot, ["seen"], matches=3, seats=seats) == {"seen": expected}
        assert seats_of_opponent == {0, 1, 2}.difference(seats)
        seats_of_opponent.clear()
    # Without a role it has each seat alone.
    assert points_against(snapshot, ["seen"], matches=3) == {"seen": 0.5}
    assert seats_of_opponent == {0, 1, 2}


def test_names_tell_runs_policies_and_checkpoints_apart(tmp_path: Path) -> None:
    files = [tmp_path / "one" / "checkpoints" / "best.pt", tmp_path / "two" / "policies" / "0" / "checkpoints" / "b.pt"]
    for file in files:
        file.parent.mkdir(parents=True)
        file.touch()
    (tmp_path / "other.pt").touch()
    players = [*files, tmp_path / "one", files[1].parents[1], tmp_path / "one", tmp_path / "other.pt", "perfect"]
    found = names_of(players)
    assert found[:4] == ("one/best", "two/0/b", "one", "two/0")
    assert found[4:] == ("one (2)", f"{tmp_path.name}/other", "perfect")


def test_a_tournament_is_the_same_again_with_the_same_seed() -> None:
    one, two, other = (
        tournament(["random", "greedy"], env="test/nim", matches=30, seed=seed).scores for seed in (1, 1, 2)
    )
    assert one == two
    assert one != other


def test_with_more_than_two_agents_one_player_has_all_other_seats() -> None:
    rollmill.register_player("first", lambda: lambda observation, mask: int(np.argmax(mask)))
    result = tournament(["first", "random"], env="test/rounds", matches=20)
    assert {score.matches for score in result.scores.values()} == {20}
    assert len(result.scores) == 2 * 3


@pytest.mark.parametrize(
    ("players", "options", "error", "message"),
    [
        (["random"], {}, TournamentError, "1 player"),
        (["random", "greedy"], {}, TournamentError, "name the environment"),
        (["random", "greedy"], {"env": "gym/CartPole-v1"}, TournamentError, "has one agent"),
        (["random", "greddy"], {"env": "test/nim"}, ValueError, "did you mean 'greedy'"),
        (["random", "greedy"], {"env": "test/nim", "matches": 0}, ValueError, "matches=0"),
        (["random", "."], {"env": "test/nim"}, NoRunError, "is not a run"),
    ],
)
def test_players_that_cannot_meet_are_refused(
    players: list[str],
    options: dict[str, Any],
    error: type[Exception],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        tournament(players, **options)


class Alone(gymnasium.Env[Any, Any]):
    """Nim against a player that takes one match each time."""

    observation_space = Nim().observation_space("first")
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.game = Nim()
        self.game.reset()
        return self.game.observe("first"), {}


class Longer(Alone):
    """With more matches."""

    observation_space = gymnasium.spaces.Dict(
        {"matches": gymnasium.spaces.Discrete(99), "action_mask": gymnasium.spaces.Box(0, 1, (3,), np.int8)}
    )


def test_a_player_of_another_environment_plays_where_its_spaces_are_equal(make_run: MakeRun) -> None:
    register_env("test/alone", Alone)
    register_env("test/longer", Longer)
    learned, alone = make_run("test/nim"), make_run("test/alone")
    result = tournament([str(learned), str(alone), "perfect"], env="test/nim", matches=5)
    assert {score.matches for score in result.scores.values()} == {5}
    with pytest.raises(TournamentError, match="trained on 'test/nim', 'test/alone': name the environment"):
        tournament([str(learned), str(alone)])
    register_env("test/nim_again", Nim)
    again = tournament([str(learned), "perfect"], env="test/nim_again", matches=5)
    assert again.env == "test/nim_again"
    assert again.scores == tournament([str(learned), "perfect"], env="test/nim", matches=5).scores
    longer = make_run("test/longer")
    with pytest.raises(TournamentError, match=r"trained on 'test/longer', whose observation is .* of 'test/nim' is"):
        tournament([str(learned), str(longer)], env="test/nim")


OWN_ENCODER = """
import rollmill
import torch


class First(torch.nn.Module):
    def __init__(self, observation, action, config):
        super().__init__()
        self.name = min(observation)
        self.output_size = observation[self.name].size

    def forward(self, observation):
        return observation[self.name].flatten(1).float()


rollmill.register_encoder("second", First)
"""


def test_networks_of_all_players_are_found(make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ENCODERS, "factories", dict(ENCODERS.factories))
    module = tmp_path / "of_the_second_player.py"
    module.write_text(OWN_ENCODER)
    register_env("test/nim_again", Nim)
    first = make_run("test/nim")
    second = make_run("test/nim_again", imports=(str(module),), model=ModelConfig(encoder="second"))
    ENCODERS.factories.pop("second")
    del sys.modules["of_the_second_player"]
    result = tournament([str(first), str(second)], env="test/nim", matches=1)
    assert result.players == ("test_nim", "test_nim_again")
    # Modules that a player does not need may be gone.
    module.unlink()
    tournament([str(first), str(second)], env="test/nim", matches=1)
    ENCODERS.factories.pop("second")
    del sys.modules["of_the_second_player"]
    with pytest.raises(NoSuchModuleError, match="of_the_second_player"):
        check_opponents([str(second)], probe(EnvConfig(name="test/nim")), "clip")


class Undrawable(Nim):
    """Its renderer lacks a library."""

    render_mode = "rgb_array"

    def render(self) -> Any:
        raise ImportError("a library for drawing")


class Bare:
    """A game that has no more of PettingZoo's interface than is used to play."""

    def __init__(self) -> None:
        self._game = Nim()

    def __getattr__(self, name: str) -> Any:
        if name == "unwrapped":
            raise AttributeError(name)
        return getattr(self._game, name)


@pytest.mark.parametrize("game", [Undrawable, Bare])
def test_results_stay_where_no_match_can_be_filmed(game: Any, tmp_path: Path) -> None:
    register_env("test/undrawable", game)
    with pytest.warns(UserWarning, match="no video was written"):
        result = tournament(["perfect", "greedy"], env="test/undrawable", matches=2, videos=tmp_path)
    assert result.videos == {}
    assert result.scores[0, 1, 0] == Score(2, 0, 0)


def test_a_game_without_a_picture_cannot_be_watched(make_run: MakeRun, tmp_path: Path) -> None:
    with pytest.raises(NotRenderableError, match="neither renders nor observes images"):
        watch(make_run("test/nim"), episodes=1, video=tmp_path / "a.mp4")
