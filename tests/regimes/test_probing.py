"""The process that determines sizes before memory is allocated."""

from __future__ import annotations

import os
import pickle
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from tests.rollout.driven_worker import context_of

import rollmill
from rollmill.envs.registry import register_env
from rollmill.learning.in_flight import InFlight
from rollmill.models.config import ModelConfig
from rollmill.models.flat_state import flat_nbytes
from rollmill.models.observation import register_encoder
from rollmill.models.sizing import largest_parameter
from rollmill.regimes.caveats import caveats_of
from rollmill.regimes.probing import _unpack_states, probe
from rollmill.regimes.setup import NetworkSizes, Probed, Refusal, group_states
from rollmill.regimes.steps_done import saved_steps
from rollmill.regimes.torch_side import make_on_policy
from rollmill.regimes.user_code import UserCode
from rollmill.roles import LEARNER
from rollmill.runtime.ledger import Ledger
from rollmill.runtime.plain_data import MalformedMessageError, encode
from rollmill.runtime.ranks import Ranks
from rollmill.runtime.signatures import Verdict
from rollmill.settings.config import Config
from rollmill.storage.checkpoints import CheckpointConfig, CheckpointStore
from rollmill.storage.group_states import GroupState

SETTINGS = {"num_envs": 2, "rollout_length": 8, "rollout.num_workers": 1, "regime": "lockstep"}


class Attack:
    """Touches a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("iteration", [4, "4", "../4", -1, True])
def test_checkpoint_without_states_loads_no_state_files(tmp_path: Path, iteration: Any) -> None:
    """Every first checkpoint has a signature over no states, which must not validate other files."""
    config = rollmill.make_config("gym/CartPole-v1", SETTINGS).resolved()
    folder = tmp_path / "checkpoints"
    planted = folder / "old" / str(iteration) / "group-0"
    planted.parent.mkdir(parents=True)
    planted.write_bytes(encode((pickle.dumps(Attack(tmp_path / "marker")), {}, None, None)))
    (folder / ".groups").symlink_to("old")
    state = InFlight(0, [], []).pack()
    state["iteration"] = iteration
    CheckpointStore(folder, CheckpointConfig()).save({"in_flight": state}, agent_steps=7)
    with pytest.raises(MalformedMessageError, match=r"is damaged or was changed; restore it"):
        _unpack_states(config, tmp_path, Ranks(), trust=False)


def test_a_checkpoint_that_only_some_policies_have_is_no_longer_resumed(tmp_path: Path) -> None:
    config = rollmill.make_config("gym/CartPole-v1", {**SETTINGS, "population.policies": "a,b"}).resolved()
    folders = config.population.folders(tmp_path)
    stores = [CheckpointStore(folder / "checkpoints", CheckpointConfig(keep=3)) for folder in folders]
    groups = [GroupState(b"", {}, None).pack() for _ in range(config.num_envs // config.envs_per_group)]
    # Policy a had saved iteration 8 twice, and b had not when the run was stopped.
    for iteration in (4, 8, 8):
        stores[0].save({"in_flight": InFlight(iteration, [], []).pack()}, agent_steps=10 * iteration)
    stores[1].save({"in_flight": InFlight(4, [], groups).pack()}, agent_steps=40)
    assert _unpack_states(config, tmp_path, Ranks(), trust=False) == 4
    assert [path.stem.endswith("_end") for path in stores[0].paths()] == [True, True, False]
    assert saved_steps(folders) == 80
    # It can still be evaluated.
    assert stores[0].load_latest().path == stores[0].paths()[0]


def probed(config: Config, run_dir: Path | None = None, *, trust: bool = False) -> object:
    """What a probe sends to the main process."""
    sent: list[object] = []
    probe(context_of(Ledger.private(LEARNER), sent.append), config, UserCode((), ()), run_dir, trust=trust)
    (message,) = sent
    return message


def test_it_reports_the_sizes_of_the_environment_and_the_network() -> None:
    config = rollmill.make_config("gym/CartPole-v1", {**SETTINGS, "model.mlp_sizes": (5,)}).resolved()
    found = probed(config)
    assert isinstance(found, Probed)
    assert found.spec.observation["obs"].shape == (4,)
    assert found.spec.repeats is True, "it was asked whether the environment repeats, in lockstep"
    assert (found.state_size, found.first_iteration, found.shared, found.saved_steps) == (0, 0, None, None)
    network = make_on_policy(config, found.spec)
    assert found.num_parameters == sum(parameter.numel() for parameter in network.parameters())
    assert found.weight_nbytes == flat_nbytes(network.acting)
    assert found.largest_parameter == largest_parameter(network)
    assert found.settings["inference.precision"] == "fp32"
    assert found.settle(config).inference.precision == "fp32"


@pytest.mark.parametrize(
    ("algo", "settings", "message"),
    [
        (None, {"model.encoder": "impala"}, "encoder 'impala' needs an image, but observation entry 'obs' has shape"),
        (None, {"model.entry_encoders.pixels": "mlp"}, r"entry_encoders names \['pixels'\], but the observation has"),
        ("dqn", {"model.entry_encoders.obs": "sf_simplified"}, "encoder 'sf_simplified' needs an image"),
    ],
)
def test_settings_that_do_not_fit_the_network_are_refused(
    algo: str | None, settings: dict[str, Any], message: str
) -> None:
    refusal = probed(rollmill.make_config("gym/CartPole-v1", {"num_envs": 2, **settings}, algo=algo).resolved())
    assert isinstance(refusal, Refusal)
    assert re.search(message, refusal.reason)


def test_frozen_parameters_are_counted_by_themselves() -> None:
    def sizes_of(freeze: str, algo: str | None) -> NetworkSizes:
        settings = {"num_envs": 2, "model.mlp_sizes": (5,), "learner.freeze": freeze}
        found = probed(rollmill.make_config("gym/CartPole-v1", settings, algo=algo).resolved())
        assert isinstance(found, Probed)
        (sizes,) = found.networks
        return sizes

    assert sizes_of("", None).num_frozen == 0
    for algo, pattern in ((None, "encoder"), ("dqn", "weight_0")):  # DQN's target network is not trained anyway.
        whole, part = sizes_of("", algo), sizes_of(pattern, algo)
        assert part.num_frozen > 0
        assert part.num_parameters + part.num_frozen == whole.num_parameters


def test_a_recurrent_network_of_a_replay_has_a_state_and_sizes_for_several_learners() -> None:
    settings = {"model.core": "gru", "model.core_size": 6, "replay.sequence_length": 8, "num_envs": 2}
    found = probed(rollmill.make_config("gym/CartPole-v1", settings, algo="dqn").resolved())
    assert isinstance(found, Probed)
    assert found.state_size == 6
    assert found.shared is not None
    assert found.shared.gradient == found.num_parameters
    assert found.spec.repeats is None, "only lockstep needs to know"


def test_options_that_the_network_does_not_ask_for_are_named() -> None:
    def encoder(observation: Any, action: Any, config: ModelConfig) -> torch.nn.Module:
        network = torch.nn.Identity()
        network.output_size = config.options.get("width", 4)
        return network

    register_encoder("test_probing", encoder)
    options = {"width": 4, "widht": 5}
    given = {"num_envs": 2, "model.encoder": "test_probing", "model.options": options}
    config = rollmill.make_config("gym/CartPole-v1", given).resolved()
    found = probed(config)
    assert isinstance(found, Probed)
    assert found.unread_options == {"widht": ("width",)}
    (warning,) = caveats_of(config, found.spec, found.unread_options)
    assert warning == (
        "model.options.widht was not read when the network was built, so it may have no effect; read were width"
    )


def test_a_scenario_that_does_not_fit_its_settings_is_refused_with_the_reason() -> None:
    pytest.importorskip("vizdoom")
    found = probed(rollmill.make_config("vizdoom/deathmatch", {"env.vizdoom.players": 9}).resolved())
    assert isinstance(found, Refusal)
    assert found.reason == "env.vizdoom.players=9: give 2 to 8"


@pytest.mark.parametrize("name", ["all_agents", "task_of_run"])
def test_an_observation_with_a_name_that_is_kept_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Named(gymnasium.ObservationWrapper[Any, Any, Any]):
        def __init__(self) -> None:
            super().__init__(gymnasium.make("CartPole-v1"))
            space = self.env.observation_space
            self.observation_space = gymnasium.spaces.Dict({"self": space, name: space})

        def observation(self, observation: Any) -> Any:
            return {"self": observation, name: observation}

    monkeypatch.setattr("rollmill.envs.registry._registered", {})
    register_env("test/named", Named)
    found = probed(rollmill.make_config("test/named", {"num_envs": 2}).resolved())
    assert isinstance(found, Refusal)
    assert f"has an observation entry {name!r}" in found.reason


def test_an_unknown_encoder_is_refused_with_the_reason() -> None:
    found = probed(rollmill.make_config("gym/CartPole-v1", {"num_envs": 2, "model.encoder": "natrue"}).resolved())
    assert isinstance(found, Refusal)
    assert "nature" in found.reason


def test_an_algorithm_that_does_not_fit_the_actions_is_refused_with_the_reason() -> None:
    config = rollmill.make_config("gym/Pendulum-v1", {"num_envs": 2}, algo="sac").resolved()
    dqn = rollmill.make_config("gym/CartPole-v1", {"num_envs": 2}, algo="dqn").resolved()
    found = probed(replace(dqn, env=config.env))
    assert isinstance(found, Refusal)
    assert "dqn" in found.reason.lower()


def test_a_resumed_replay_continues_after_the_steps_of_its_checkpoint(tmp_path: Path) -> None:
    config = rollmill.make_config("gym/CartPole-v1", {"num_envs": 2}, algo="dqn").resolved()
    store = CheckpointStore(tmp_path / "checkpoints", CheckpointConfig())
    for steps in (300, 700):
        store.save({"counters": {"agent_steps": steps}}, agent_steps=steps)
    found = probed(config, tmp_path)
    assert isinstance(found, Probed)
    assert found.saved_steps == (700,)


def test_the_states_of_groups_are_left_for_the_rollout_workers_if_they_are_trusted(tmp_path: Path) -> None:
    config = rollmill.make_config("gym/CartPole-v1", {**SETTINGS, "envs_per_group": 1}).resolved()
    packed = [GroupState(pickle.dumps(f"group {group}"), {}, None).pack() for group in range(2)]
    store = CheckpointStore(tmp_path / "checkpoints", CheckpointConfig())
    store.save({"in_flight": InFlight(3, [], packed).pack()}, agent_steps=48)
    found = probed(config, tmp_path)
    assert isinstance(found, Probed)
    assert found.first_iteration == 3
    for group in range(2):
        state, verdict = group_states(tmp_path).read(3, group)
        assert verdict is Verdict.VALID
        assert state.environments is not None
        assert pickle.loads(state.environments) == f"group {group}"
    # Signed as a whole, but made by somebody else: what rank 0 gathers from other machines.
    store.save({"in_flight": InFlight(3, [], [encode((b"", {}, None, None))] * 2).pack()}, agent_steps=64)
    refused = probed(config, tmp_path)
    assert isinstance(refused, Refusal)
    assert "it holds pickled environments" in refused.reason
    assert "--trust" in refused.reason
    store.save({"in_flight": InFlight(3, [], packed[:1]).pack()}, agent_steps=80)
    refused = probed(config, tmp_path, trust=True)
    assert isinstance(refused, Refusal)
    assert "has the states of 1 groups, but at iteration 3 this run needs 2" in refused.reason
