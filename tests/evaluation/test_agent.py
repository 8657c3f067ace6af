"""Agents: what they answer, what they remember, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from rollmill.envs.factory import probe
from rollmill.envs.registry import register_env
from rollmill.envs.space_data import encode_spaces
from rollmill.evaluation.agent import Agent, AgentError, load
from rollmill.evaluation.saved_spaces import write_spaces
from rollmill.evaluation.snapshot import NoRunError, folder_of_policy, newest_checkpoint, read_snapshot
from rollmill.models.config import ModelConfig
from rollmill.models.registry import make_model
from rollmill.storage.checkpoint_file import CheckpointError

from .conftest import MakeRun, Mixed

CARTPOLE = "gym/CartPole-v1"
GRU = ModelConfig(core="gru", core_size=8)


class Heads(gym.Env[Any, Any]):
    """Shows a mask for each of two choices."""

    observation_space = spaces.Dict(
        obs=spaces.Box(-1, 1, (2,), np.float32),
        action_mask=spaces.Tuple([spaces.MultiBinary(3), spaces.MultiBinary(2)]),
    )
    action_space = spaces.MultiDiscrete([3, 2])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return {"obs": np.zeros(2, np.float32), "action_mask": (np.ones(3), np.ones(2))}, {}


def observations(count: int) -> NDArray[np.float32]:
    return np.random.default_rng(0).normal(size=(count, 4)).astype(np.float32)


def test_the_loaded_network_is_the_saved_one(make_run: MakeRun) -> None:
    run_dir = make_run(CARTPOLE, model=ModelConfig(mlp_sizes=(8,)))
    agent = load(run_dir)
    spec = probe(agent.snapshot.env)
    saved = make_model(spec.observation, spec.action, ModelConfig(mlp_sizes=(8,)))
    saved.load_state_dict(read_snapshot(run_dir).weights)
    batch = observations(50)
    with torch.no_grad():
        logits = saved({"obs": torch.from_numpy(batch)}).params
    assert agent.act(batch, deterministic=True).tolist() == logits.argmax(-1).tolist()


def test_an_agent_shows_what_it_is(make_run: MakeRun) -> None:
    agent = load(make_run(CARTPOLE))
    snapshot = agent.snapshot
    expected = (
        f"<Agent of 'gym/CartPole-v1': ppo after {snapshot.agent_steps:,} agent steps, from {snapshot.checkpoint}>"
    )
    assert repr(agent) == expected


def test_one_observation_gives_what_the_environment_takes(make_run: MakeRun) -> None:
    agent = load(make_run(CARTPOLE))
    env = gym.make("CartPole-v1")
    observation, _ = env.reset(seed=0)
    action = agent.act(observation)
    assert env.action_space.contains(action)
    env.step(action)
    env.close()


def test_a_batch_is_answered_like_its_rows(make_run: MakeRun) -> None:
    agent = load(make_run(CARTPOLE))
    batch = observations(20)
    together = agent.act(batch, deterministic=True)
    assert together.shape == (20,)
    assert together.tolist() == [agent.act(row, deterministic=True) for row in batch]


def test_sampled_actions_follow_the_policy_and_the_seed(make_run: MakeRun) -> None:
    run_dir = make_run(CARTPOLE)
    many = np.repeat(observations(1), 4000, axis=0)
    actions = load(run_dir, seed=1).act(many)
    assert actions.tolist() == load(run_dir, seed=1).act(many).tolist()
    assert actions.tolist() != load(run_dir, seed=2).act(many).tolist()
    agent = load(run_dir)
    with torch.no_grad():
        probability = agent.algorithm.acting({"obs": torch.from_numpy(many[:1])}).params.softmax(-1)[0, 1].item()
    assert actions.mean() == pytest.approx(probability, abs=4 * np.sqrt(0.25 / 4000))


def probabilities(agent: Agent) -> Any:
    """The recurrent state, which is what tells one history from another."""
    assert agent._state is not None
    return agent._state.numpy().copy()


def test_a_recurrent_policy_remembers_until_it_is_reset(make_run: MakeRun) -> None:
    agent = load(make_run(CARTPOLE, model=GRU))
    first, second = observations(2)
    agent.act(second)
    fresh = probabilities(agent)
    agent.act(first)
    agent.act(second)
    assert not np.allclose(probabilities(agent), fresh)
    agent.reset()
    agent.act(second)
    np.testing.assert_allclose(probabilities(agent), fresh)


@pytest.mark.parametrize("rows", [np.array([False, True, False]), [1]])
def test_rows_are_reset_one_by_one(make_run: MakeRun, rows: Any) -> None:
    agent = load(make_run(CARTPOLE, model=GRU))
    batch = observations(3)
    agent.act(batch)
    fresh = probabilities(agent)
    agent.reset(rows)
    kept = probabilities(agent)
    assert (kept[1] == 0).all()
    np.testing.assert_array_equal(kept[[0, 2]], fresh[[0, 2]])
    agent.act(batch)
    after = probabilities(agent)
    np.testing.assert_allclose(after[1], fresh[1], atol=1e-6)
    assert not np.allclose(after[0], fresh[0])


def test_resetting_before_anything_was_seen_does_nothing(make_run: MakeRun) -> None:
    agent = load(make_run(CARTPOLE, model=GRU))
    agent.reset([0])
    assert agent.act(observations(1)[0]) in (0, 1)


def test_the_number_of_rows_may_change_only_with_a_reset(make_run: MakeRun) -> None:
    agent = load(make_run(CARTPOLE, model=GRU))
    agent.act(observations(3))
    with pytest.raises(AgentError, match=r"2 observations were given.*3 rows; call reset\(\)"):
        agent.act(observations(2))
    agent.reset()
    assert len(agent.act(observations(2))) == 2


def test_dict_observations_masks_and_tuples_of_actions(make_run: MakeRun) -> None:
    agent = load(make_run("test/mixed"))
    env = Mixed()
    observation, _ = env.reset(seed=0)
    for _ in range(4):
        observation, *_ = env.step(agent.act(observation))  # asserts the mask and the bounds
    of_tuple = agent.act(observation, deterministic=True)
    of_list = agent.act(observation | {"pair": list(observation["pair"])}, deterministic=True)
    assert of_list[1].tolist() == of_tuple[1].tolist(), "as Gymnasium's own Tuple takes it"
    batch = {
        "where": np.array([1, 3]),
        "deep": {"vector": np.zeros((2, 2))},
        "pair": (np.zeros((2, 1)), np.array([0, 1])),
        "action_mask": np.array([[1, 0, 0], [0, 0, 1]]),
    }
    discrete, continuous = agent.act(batch)
    assert discrete.tolist() == [5, 7]
    assert continuous.shape == (2, 2)


def test_a_number_and_an_array_of_one_element_are_equivalent(make_run: MakeRun) -> None:
    agent = load(make_run("test/lengths"))  # whose space has the shape (1,)
    for one in (0.5, [0.5], np.array(0.5), np.array([0.5], np.float32)):
        assert np.shape(agent.act(one)) == np.shape(agent.act(one, is_batch=False)) == ()
    assert agent.act(np.array([[0.5]])).shape == (1,)
    assert agent.act(np.array([0.5, 0.25]), is_batch=True).shape == (2,)
    agent = load(make_run("test/cell"))  # whose space has the shape ()
    assert np.shape(agent.act(2)) == np.shape(agent.act(np.array([2]), is_batch=False)) == ()
    assert agent.act(np.array([2])).shape == (1,)
    with pytest.raises(AgentError, match="does not fit"):
        agent.act(np.array([2, 1]), is_batch=False)
    with pytest.raises(AgentError, match="does not fit"):
        agent.act(2, is_batch=True)


def test_arrays_of_one_element_in_a_dict_are_no_batch(make_run: MakeRun) -> None:
    agent = load(make_run("test/cell_and_view"))
    one = {"cell": np.array([2]), "view": np.zeros(3, np.float32)}
    assert np.shape(agent.act(one)) == np.shape(agent.act(one | {"cell": 2})) == ()
    batch = {"cell": np.array([[2], [1]]), "view": np.zeros((2, 3), np.float32)}
    assert agent.act(batch).shape == agent.act(batch | {"cell": np.array([2, 1])}).shape == (2,)


def test_a_mask_may_be_given_beside_the_observation(make_run: MakeRun) -> None:
    agent = load(make_run(CARTPOLE))
    batch = observations(40)
    assert set(agent.act(batch, action_mask=np.tile([False, True], (40, 1)))) == {1}
    assert agent.act(batch[0], action_mask=np.array([1, 0])) == 0
    with pytest.raises(AgentError, match="3 entries a row; 2 are needed"):
        agent.act(batch[0], action_mask=np.ones(3))


@pytest.mark.parametrize("mask", [([1, 0, 1], [0, 1]), [[1, 0, 1], [0, 1]], np.array([1, 0, 1, 0, 1]), [1, 0, 1, 0, 1]])
def test_a_mask_of_several_heads_in_the_observation_may_be_flat(make_run: MakeRun, mask: Any) -> None:
    register_env("test/heads", Heads)
    agent = load(make_run("test/heads"))
    assert tuple(agent.act({"obs": np.zeros(2, np.float32), "action_mask": mask})) in {(0, 1), (2, 1)}


def test_a_mask_that_allows_nothing_is_refused(make_run: MakeRun) -> None:
    agent = load(make_run(CARTPOLE))
    mask = np.ones((3, 2), bool)
    mask[1] = False
    with pytest.raises(AgentError, match=r"allows none of the 2 choices of head 0 in row 1: allow at least one"):
        agent.act(observations(3), action_mask=mask)
    with pytest.raises(AgentError, match=r"does not have .* of numbers .NaN."):
        agent.act(observations(1)[0], action_mask=[np.nan, 1.0])
    with pytest.raises(AgentError, match="does not have 3 row"):
        agent.act(observations(3), action_mask=[True])
    mixed = load(make_run("test/mixed"))
    observation, _ = Mixed().reset(seed=0)
    with pytest.raises(AgentError, match="allows none of the"):
        mixed.act(observation | {"action_mask": np.zeros_like(observation["action_mask"])})


def test_an_agent_that_was_trained_with_masks_needs_one(make_run: MakeRun) -> None:
    run_dir = make_run(CARTPOLE)
    env = gym.make("CartPole-v1")
    data = encode_spaces(env.observation_space, env.action_space, has_action_mask=True)
    assert data is not None
    write_spaces(run_dir, data)
    agent = load(run_dir)
    with pytest.raises(AgentError, match=r"no action mask was given.*give act's argument 'action_mask' with 2 entries"):
        agent.act(observations(1)[0])
    assert agent.act(observations(1)[0], action_mask=[0, 1]) == 1
    mixed = load(make_run("test/mixed"))
    observation, _ = Mixed().reset(seed=0)
    mask = observation.pop("action_mask")
    with pytest.raises(AgentError, match=r"no action mask was given.*the observation's entry 'action_mask'"):
        mixed.act(observation)
    mixed.act(observation, action_mask=mask)


@pytest.mark.parametrize("is_batch", [False, True])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"where": None},
            "the observation has no entry 'where'; entries given: 'deep', 'pair', 'action_mask'; needed:",
        ),
        ({"deep": {}}, "entry 'deep' has no entry 'vector'; entries given: none; needed: 'vector'"),
        ({"deep": 3}, "entry 'deep' is .*; a dict is needed, with 'vector'"),
        ({"deep": {"vector": np.zeros(5)}}, r"entry 'deep/vector' has shape \(.*5,?\); \(.*2,?\) is needed"),
        ({"deep": {"vector": np.array(["a", "b"])}}, "entry 'deep/vector' has dtype <U1; numbers are needed"),
        ({"deep": {"vector": np.array([0, np.nan])}}, "entry 'deep/vector' holds NaN"),
        ({"where": np.float32(0.5)}, "entry 'where' holds 0.5, which is no value of"),
        ({"pair": (np.zeros(1),)}, "entry 'pair' is 1 entries; a tuple of 2 is needed"),
    ],
)
def test_what_is_wrong_with_an_entry_is_named(
    make_run: MakeRun, is_batch: bool, change: dict[str, Any], message: str
) -> None:
    agent = load(make_run("test/mixed"))
    observation, _ = Mixed().reset(seed=0)
    wrong = {key: value for key, value in (observation | change).items() if value is not None}
    with pytest.raises(AgentError, match=message):
        agent.act(stacked(wrong, 3) if is_batch else wrong)


def stacked(observation: Any, count: int) -> Any:
    if isinstance(observation, dict):
        return {key: stacked(value, count) for key, value in observation.items()}
    if isinstance(observation, tuple):
        return tuple(stacked(value, count) for value in observation)
    return np.stack([np.asarray(observation)] * count)


def test_entries_beside_the_spaces_are_ignored_as_in_training(make_run: MakeRun) -> None:
    observation, _ = Mixed().reset(seed=0)
    load(make_run("test/mixed")).act(observation | {"debug": "anything"})


def test_an_array_with_its_axes_in_another_order_is_refused(make_run: MakeRun) -> None:
    # It has as many numbers, so that reshaping it would only scramble them.
    agent = load(make_run(CARTPOLE))
    with pytest.raises(AgentError, match=r"the observation has shape \(2, 8\); \(2, 4\) is needed"):
        agent.act(np.zeros((2, 8), np.float32))
    with pytest.raises(AgentError, match=r"the observation has shape \(8, 2\); \(8, 4\) is needed"):
        agent.act(np.zeros((8, 2), np.float32))


def test_a_picture_with_its_axes_in_another_order_is_refused(make_run: MakeRun) -> None:
    # It has as many numbers, so that reshaping it would only scramble them.
    agent = load(make_run("test/striped"))
    assert agent.act(np.zeros((2, 3, 12, 16), np.uint8)).shape == (2,)
    with pytest.raises(AgentError, match=r"has shape \(2, 12, 16, 3\); \(2, 3, 12, 16\) is needed"):
        agent.act(np.zeros((2, 12, 16, 3), np.uint8))


@pytest.mark.parametrize("wrong", [np.zeros((2, 3, 4), np.float32), 1.0, "text", None])
def test_what_is_no_observation_is_refused(make_run: MakeRun, wrong: Any) -> None:
    with pytest.raises(AgentError, match=r"neither one observation of 'gym/CartPole-v1'.*nor a batch"):
        load(make_run(CARTPOLE)).act(wrong)


def test_an_observation_of_another_shape_is_refused(make_run: MakeRun) -> None:
    with pytest.raises(AgentError, match="does not fit the environment"):
        load(make_run(CARTPOLE)).act(np.zeros(3, np.float32))


def test_observations_may_be_read_only(make_run: MakeRun) -> None:
    batch = observations(2)
    batch.flags.writeable = False
    assert len(load(make_run(CARTPOLE)).act(batch)) == 2


def test_latest_best_and_a_path(make_run: MakeRun) -> None:
    run_dir = make_run(CARTPOLE, agent_steps=300)
    make_run(CARTPOLE, agent_steps=100, seed=1)
    assert load(run_dir).snapshot.agent_steps == 100
    assert load(run_dir, checkpoint="best").snapshot.agent_steps == 300
    oldest = sorted((run_dir / "checkpoints").glob("checkpoint_*"))[0]
    assert load(run_dir, checkpoint=oldest).snapshot.agent_steps == 300
    newest = newest_checkpoint(run_dir)
    assert newest is not None
    assert newest == load(run_dir).snapshot.checkpoint


def test_a_torn_checkpoint_is_passed_over_with_a_warning(make_run: MakeRun) -> None:
    run_dir = make_run(CARTPOLE, agent_steps=100)
    newest = make_run(CARTPOLE, agent_steps=200) and newest_checkpoint(run_dir)
    assert newest is not None
    newest.write_bytes(newest.read_bytes()[:-100])
    with pytest.warns(UserWarning, match=newest.name):
        assert load(run_dir).snapshot.agent_steps == 100


def test_where_there_is_no_run(tmp_path: Path, make_run: MakeRun) -> None:
    with pytest.raises(NoRunError, match=r"there is no such directory"):
        folder_of_policy(tmp_path / "nothing", "red")
    with pytest.raises(NoRunError, match=r"there is no such directory"):
        load(tmp_path / "nothing")
    run_dir = make_run(CARTPOLE)
    with pytest.raises(NoRunError, match="there is no checkpoint"):
        load(run_dir, checkpoint="oldest")
    for damaged in ("{", "[]", "{}"):
        (run_dir / "config.json").write_text(damaged)
        with pytest.raises(NoRunError, match="is not the configuration of a run"):
            load(run_dir)


def test_a_run_without_a_checkpoint(make_run: MakeRun) -> None:
    run_dir = make_run(CARTPOLE)
    for path in (run_dir / "checkpoints").iterdir():
        path.unlink()
    assert newest_checkpoint(run_dir) is None
    with pytest.raises(CheckpointError, match="no checkpoint"):
        load(run_dir)


def test_weights_of_another_network_are_refused(make_run: MakeRun) -> None:
    run_dir = make_run(CARTPOLE)
    config = json.loads((run_dir / "config.json").read_text())
    config["model"]["mlp_sizes"] = [7]
    (run_dir / "config.json").write_text(json.dumps(config))
    with pytest.raises(AgentError, match=r"does not fit 'gym/CartPole-v1'"):
        load(run_dir)
