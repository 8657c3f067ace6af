"""How much memory a replay takes."""

import pytest

import rollmill
from rollmill.envs.factory import probe
from rollmill.regimes.replay import plan_topology
from rollmill.regimes.setup import NetworkSizes, Probed
from rollmill.runtime.arena import ArenaLayout
from rollmill.storage.replay import add_to_layout, replay_fields


@pytest.mark.parametrize("num_envs", [1, 8, 64])
def test_a_million_transitions_of_atari_fit_into_seven_gigabytes_and_a_half(num_envs):
    pytest.importorskip("ale_py")
    config = rollmill.make_config(
        "atari/pong", {"replay.capacity": 1_000_000, "num_envs": num_envs}, algo="dqn"
    ).resolved()
    spec = probe(config.env)
    topology = plan_topology(config, Probed(spec, (NetworkSizes(0, 0, 0),)))
    layout = ArenaLayout()
    add_to_layout(layout, replay_fields(spec, rollout_length=config.rollout_length), topology, config.replay)
    # What is being written comes on top of what can be drawn.
    drawable = (topology.num_slots - topology.num_groups) * config.rollout_length * topology.group_rows
    assert drawable >= 1_000_000
    assert layout.nbytes <= 7.6e9
