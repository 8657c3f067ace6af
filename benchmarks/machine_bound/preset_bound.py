"""The machine's bound for a preset, whose environment and network must be those of the frozen kernels."""

from __future__ import annotations

from benchmarks.machine_bound.bound import BoundMeter

from rollmill.api import make_config
from rollmill.envs.doom_scenarios import SCENARIOS
from rollmill.settings.config import Config


def meter_for(config: Config) -> BoundMeter:
    """A meter of the bound for a resolved configuration.

    Raises:
        ValueError: There are no frozen kernels of its environment and network. They are the presets' own, so other
            settings of environment or model leave nothing to compare with.
    """
    preset = make_config(config.preset or config.env.name)
    if not config.in_replay and (config.env, config.model) == (preset.env, preset.model):
        family, _, name = config.env.name.partition("/")
        epochs, sizes = config.on_policy.epochs, {"minibatch": config.minibatch_size}
        if family == "atari" and config.model.core == "none" and config.model.encoder in ("auto", "nature"):
            return BoundMeter("atari", epochs=epochs, env_options={"game": name}, train_options=sizes)
        if family == "vizdoom" and config.model.core == "gru" and name not in SCENARIOS:
            return BoundMeter("vizdoom", epochs=epochs, env_options={"scenario": name}, train_options=sizes)
        if config.env.name in ("gym/CartPole-v1", "CartPole-v1"):
            return BoundMeter("cartpole", epochs=epochs, train_options=sizes)
        if config.env.name == "envpool/CartPole-v1":
            return BoundMeter("cartpole-envpool", epochs=epochs, train_options=sizes)
    raise ValueError(
        f"there are no frozen kernels of {config.preset or config.env.name} with these settings: choose an Atari game, "
        "a scenario of VizDoom's own or CartPole, with the environment and the model of its preset"
    )
