"""Players of matches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rollmill
from rollmill.envs.actions import ActionCodec
from rollmill.envs.views import ObservationView
from rollmill.evaluation.players import PLAYERS, PlayerError, RandomPlayer, ScriptedPlayer, player_factory
from rollmill.specs import ActionSpec, BoxActions, BoxHead, CategoricalHead

CHOICES = ActionSpec(heads=(CategoricalHead(n=3), CategoricalHead(n=2)), structure="multidiscrete")
NUMBERS = ActionSpec(heads=(BoxHead(low=(-1.0,), high=(1.0,), shape=(1,)),), structure="box")


def view(mask: Any = None) -> ObservationView:
    observation = {"obs": np.arange(8, dtype=np.float32).reshape(4, 2)}
    return ObservationView(observation, None if mask is None else np.array(mask), np.zeros(4, bool), np.ones(4, bool))


@pytest.fixture(autouse=True)
def own_players(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PLAYERS, "factories", {})


def test_a_scripted_player_is_asked_for_its_own_rows_with_what_they_see() -> None:
    seen = []

    def choose(observation: Any, mask: Any) -> Any:
        seen.append((observation.tolist(), mask.tolist()))
        return [2, 1]

    mask = [[True] * 5] * 3 + [[False, False, True, True, True]]
    player = ScriptedPlayer("test", choose, CHOICES, "clip")
    discrete, continuous = player.choose(view(mask), np.array([False, True, False, True]))
    assert seen == [([2, 3], mask[1]), ([6, 7], mask[3])]
    assert continuous is None
    assert discrete is not None
    assert discrete[[1, 3]].tolist() == [[2, 1], [2, 1]]


def test_several_entries_are_given_as_a_dict_and_real_numbers_are_taken() -> None:
    both = ObservationView({"a": np.ones((1, 2)), "b": np.zeros((1, 3))}, None, np.zeros(1, bool), np.ones(1, bool))

    def choose(observation: Any, mask: Any) -> Any:
        assert set(observation) == {"a", "b"}
        assert mask is None
        return np.array([0.25])

    discrete, continuous = ScriptedPlayer("test", choose, NUMBERS, "clip").choose(both, np.ones(1, bool))
    assert discrete is None
    assert continuous is not None
    assert continuous.tolist() == [[0.25]]


@pytest.mark.parametrize("box", ["clip", "scale", "tanh"])
def test_real_numbers_of_a_player_reach_the_environment_however_they_are_stored(box: BoxActions) -> None:
    both = ActionSpec(
        heads=(CategoricalHead(n=3), BoxHead(low=(0.0, -4.0), high=(1.0, 4.0), shape=(2,))),
        structure="tuple",
        components=(("discrete", 1), ("box", 1)),
    )
    player = ScriptedPlayer("test", lambda *_: [2, 0.25, -3.0], both, box)
    stored = player.choose(view(), np.ones(4, bool))
    choice, numbers = ActionCodec(both, box).decode_batch(*stored)
    assert choice.tolist() == [2] * 4
    np.testing.assert_allclose(numbers, [[0.25, -3.0]] * 4, rtol=1e-6)


@pytest.mark.parametrize("box", ["clip", "scale", "tanh"])
def test_the_random_player_is_uniform_over_what_the_environment_gets(box: BoxActions) -> None:
    wide = ActionSpec(heads=(BoxHead(low=(0.0, -400.0), high=(1.0, 400.0), shape=(2,)),), structure="box")
    player = RandomPlayer(wide, box, 3)
    stored = [player.choose(view(), np.ones(4, bool)) for _ in range(1000)]
    got = np.concatenate([ActionCodec(wide, box).decode_batch(*each) for each in stored])
    for column, (low, high) in enumerate(((0.0, 1.0), (-400.0, 400.0))):
        shares, _ = np.histogram(got[:, column], bins=8, range=(low, high))
        # 500 in each on average, with a deviation of 21.
        assert (np.abs(shares - 500) < 100).all()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([1], r"chose \[1\]: 2 choices and 0 real numbers are needed"),
        ([3, 0], "chose 3 for head 0, which has 0 to 2"),
        ([1.5, 0], "chose 1.5 for head 0"),
        ([0, 1], "chose 1 for head 1, which the mask forbids"),
        (["left", 0], "2 choices and 0 real numbers are needed"),
    ],
)
def test_what_a_player_may_not_choose_is_named(answer: Any, message: str) -> None:
    mask = [[True, True, True, True, False]] * 4
    with pytest.raises(PlayerError, match=f"player 'test' {message}" if message.startswith("chose") else message):
        ScriptedPlayer("test", lambda *_: answer, CHOICES, "clip").choose(view(mask), np.ones(4, bool))


def test_the_random_player_obeys_the_mask_and_its_seed() -> None:
    mask = [[True, False, True, False, True]] * 4
    one, other = (RandomPlayer(CHOICES, "clip", 5) for _ in range(2))
    chosen = np.concatenate([one.choose(view(mask), np.ones(4, bool))[0] for _ in range(50)])
    again = np.concatenate([other.choose(view(mask), np.ones(4, bool))[0] for _ in range(50)])
    assert set(chosen[:, 0].tolist()) == {0, 2}
    assert set(chosen[:, 1].tolist()) == {1}
    np.testing.assert_array_equal(chosen, again)


def test_names_are_registered_once() -> None:
    def make() -> Any:
        return None

    rollmill.register_player("mine", make)
    rollmill.register_player("mine", make)
    with pytest.raises(ValueError, match="player 'mine' exists already"):
        rollmill.register_player("mine", lambda: None)
    with pytest.raises(ValueError, match="player 'random' exists already"):
        rollmill.register_player("random", make)


def test_a_path_that_leads_nowhere_is_not_called_a_name_to_be_registered() -> None:
    with pytest.raises(PlayerError, match=r"^player 'runs/old' is no run directory and no checkpoint file"):
        player_factory("runs/old")
    with pytest.raises(PlayerError, match=r"^eval_against='runs/old': this player is no run directory"):
        player_factory("runs/old", "eval_against")
    with pytest.raises(PlayerError, match="register_player"):
        player_factory("lefmost", "eval_against")
    rollmill.register_player("runs/old", lambda: lambda observation, mask: 0)
    assert player_factory("runs/old")()(None, None) == 0
