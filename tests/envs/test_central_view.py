"""What all agents observe, for critics."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gymnasium import spaces
from tests.envs.agent_games import AGENTS, Crowd, Rounds

from rollmill.envs.agent_group import AgentGroup
from rollmill.envs.central_view import CentralView, own_entries, with_central_view
from rollmill.envs.errors import UnsupportedSpace
from rollmill.envs.spaces import ObservationCodec, action_spec
from rollmill.envs.views import own_views
from rollmill.specs import CENTRAL_VIEW, ArraySpec, EnvSpec

COUNT = len(AGENTS)


def spec_of(group: AgentGroup) -> EnvSpec:
    """The spec of a game; what a slot holds of it."""
    action = action_spec(group.action_space)
    codec = ObservationCodec(group.observation_space)
    return EnvSpec(
        name="test", observation=codec.specs, action=action, has_action_mask=codec.has_mask, agents=tuple(AGENTS)
    )


@pytest.mark.parametrize("game", [Crowd, Rounds])
def test_each_agent_is_shown_what_all_see_itself_first(game: type) -> None:
    inner = AgentGroup(game, agents=AGENTS, num_envs=2, seeds=[3, 4])
    own_spec = spec_of(inner)
    spec = with_central_view(own_spec)
    width = sum(int(np.prod(item.shape)) for item in own_spec.observation.values())
    assert spec.observation[CENTRAL_VIEW].shape == (COUNT * width + COUNT,)
    group = CentralView(inner, COUNT)
    view, outcome = own_views(spec, group.num_rows)
    for array in view.observation.values():
        array.fill(99)  # what rows that do not act may hold
    group.reset(view)
    waited = 0
    for _ in range(30):
        assert view.acts is not None
        for row in range(group.num_rows):
            first, agent = row - row % COUNT, row % COUNT
            shown = view.observation[CENTRAL_VIEW][row]
            for place in range(COUNT):
                other = first + (agent + place) % COUNT
                expected = np.concatenate(
                    [own_entries(view.observation)[name][other].ravel() for name in own_spec.observation]
                )
                waited += not view.acts[other]
                np.testing.assert_array_equal(
                    shown[place * width : (place + 1) * width], expected if view.acts[other] else np.zeros(width)
                )
            np.testing.assert_array_equal(shown[COUNT * width :], np.eye(COUNT)[agent])
        mask = view.action_mask
        chosen = np.zeros(group.num_rows, np.int32) if mask is None else mask.argmax(axis=1).astype(np.int32)
        group.step(chosen[:, None], None, view, outcome)
    assert waited
    assert group.episodes.max() > 1
    group.close()


def test_its_state_is_that_of_the_group() -> None:
    inner = AgentGroup(Crowd, agents=AGENTS, num_envs=1, seeds=[3])
    group, spec = CentralView(inner, COUNT), with_central_view(spec_of(inner))
    view, outcome = own_views(spec, COUNT)
    group.reset(view)
    group.step(np.zeros((COUNT, 1), np.int32), None, view, outcome)
    saved = group.snapshot()
    assert saved is not None
    other = CentralView(AgentGroup(Crowd, agents=AGENTS, num_envs=1, seeds=[5]), COUNT)
    other.restore(saved)
    shown = []
    for each in (group, other):
        each.step(np.ones((COUNT, 1), np.int32), None, view, outcome)
        shown.append(view.observation[CENTRAL_VIEW].copy())
        assert each.episodes.tolist() == [1]
        assert not each.resets_next.any()
        each.close()
    np.testing.assert_array_equal(shown[0], shown[1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"agents": ("a",)}, "has one agent"),
        ({"observation": {"picture": ArraySpec(shape=(64, 64, 3), dtype="uint8", low=0, high=255)}}, "is an image"),
        ({"observation": {"noise": ArraySpec(shape=(2, 2520), dtype="int16")}}, "is a sound"),
    ],
)
def test_environments_that_cannot_have_it_are_refused(change: dict[str, object], message: str) -> None:
    observation = {"obs": ArraySpec(shape=(3,), dtype="float32")}
    spec = EnvSpec(name="test", observation=observation, action=action_spec(spaces.Discrete(2)), agents=("a", "b"))
    with pytest.raises(UnsupportedSpace, match=message):
        with_central_view(replace(spec, **change))  # type: ignore[arg-type]  # any field of the spec
