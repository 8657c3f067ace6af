"""Sample Factory 2.1.1, asynchronous PPO on the CPU, with the network, batch and epochs of Rollmill's presets.

Further arguments are handed to Sample Factory: ``--num_workers=4``.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Any

from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.algo.utils.misc import ExperimentStatus
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner
from window import Window, make_parser, report

# Numbers of workers and environments are where the search of peers.py begins.
_COMMON = {
    "device": "cpu",
    "normalize_input": False,  # 1,500 -> 2,200 frames/s
    "normalize_returns": False,
    "restart_behavior": "overwrite",
    "save_every_sec": 100_000,
    "train_for_env_steps": 10**12,
    "with_wandb": False,
    "async_rl": True,
    "serial_mode": False,
}
_SETTINGS: dict[str, dict[str, object]] = {
    "atari": {
        "env": "atari_breakout",
        "encoder_conv_architecture": "convnet_atari",  # with a layer of 512: the Nature CNN
        "nonlinearity": "relu",
        "use_rnn": False,
        "rollout": 32,
        "recurrence": 1,
        "batch_size": 128,  # of a minibatch
        "num_batches_per_epoch": 8,
        "num_epochs": 1,
        "env_frameskip": 4,
        "env_framestack": 4,
        "num_workers": 2,
        "num_envs_per_worker": 16,
        "worker_num_splits": 2,
        "with_vtrace": False,
    },
    "vizdoom": {
        "env": "doom_defend_the_center_flat_actions",
        "encoder_conv_architecture": "convnet_simple",
        "use_rnn": True,
        "rnn_type": "gru",
        "rnn_size": 512,
        "rollout": 32,
        "recurrence": 32,
        "batch_size": 128,
        "num_batches_per_epoch": 16,
        "num_epochs": 1,
        "env_frameskip": 4,
        "num_workers": 2,
        "num_envs_per_worker": 16,
        "worker_num_splits": 2,
        "with_vtrace": False,  # with it, version 2.1.1 fails in its summaries and then hangs
    },
    "cartpole": {
        "env": "CartPole-v1",
        "encoder_mlp_layers": (64, 64),
        "nonlinearity": "tanh",
        "use_rnn": False,
        "rollout": 32,
        "recurrence": 1,
        "batch_size": 256,
        "num_batches_per_epoch": 4,
        "num_epochs": 4,
        "env_frameskip": 1,
        "num_workers": 2,
        "num_envs_per_worker": 16,
        "worker_num_splits": 2,
        "with_vtrace": False,
    },
}


def _make_cartpole(full_env_name: str, cfg: Any = None, env_config: Any = None, render_mode: str | None = None) -> Any:
    import gymnasium

    return gymnasium.make(full_env_name, render_mode=render_mode)


def _make_atari(full_env_name: str, cfg: Any, env_config: Any, render_mode: str | None = None) -> Any:
    import ale_py  # noqa: F401  (registers the games, in the process that makes them)
    from sf_examples.atari.atari_utils import make_atari_env

    return make_atari_env(full_env_name, cfg, env_config, render_mode)


def _register(env: str) -> None:
    """As Sample Factory's own examples do, but for importing ``ale_py`` where the games are made."""
    if env == "atari":
        register_env("atari_breakout", _make_atari)
    elif env == "cartpole":
        register_env("CartPole-v1", _make_cartpole)
    else:
        from sf_examples.vizdoom.train_vizdoom import register_vizdoom_components

        register_vizdoom_components()


def _configure(env: str, train_dir: str, overrides: list[str]) -> Any:
    settings = {**_COMMON, **_SETTINGS[env], "train_dir": train_dir, "experiment": "peer"}
    arguments = []
    for key, value in settings.items():
        arguments += [f"--{key}", *map(str, value)] if isinstance(value, tuple) else [f"--{key}={value}"]
    arguments += overrides
    parser, partial = parse_sf_args(argv=arguments)
    if env == "atari":
        from sf_examples.atari.atari_params import atari_override_defaults

        atari_override_defaults(partial.env, parser)
    elif env == "vizdoom":
        from sf_examples.vizdoom.doom.doom_params import add_doom_env_args, doom_override_defaults

        add_doom_env_args(parser)
        doom_override_defaults(parser)
    return parse_full_cfg(parser, arguments)


class _Observer(AlgoObserver):  # type: ignore[misc]
    def __init__(self, window: Window, frameskip: int) -> None:
        self._window = window
        self._frameskip = frameskip

    def on_training_step(self, runner: Any, training_iteration_since_resume: int) -> None:
        self._window.update(sum(runner.env_steps.values()) // self._frameskip)  # it counts frames
        if self._window.is_full:
            runner.cfg.train_for_env_steps = 0  # train_for_seconds would be it, but nothing counts those


def main() -> None:
    arguments, overrides = make_parser(__doc__ or "", tuple(_SETTINGS)).parse_known_args()
    train_dir = tempfile.mkdtemp(prefix="peer-sample-factory-")
    os.chdir(train_dir)  # where ViZDoom's engines leave a folder
    try:
        _register(arguments.env)
        cfg = _configure(arguments.env, train_dir, overrides)
        frameskip = cfg.env_frameskip if cfg.summaries_use_frameskip else 1
        window = Window(arguments.seconds, arguments.warm_up)
        cfg, runner = make_runner(cfg)
        runner.register_observer(_Observer(window, frameskip))
        if runner.init() != ExperimentStatus.SUCCESS or runner.run() != ExperimentStatus.SUCCESS:
            raise SystemExit("Sample Factory reports a failure; its log is above")
        config = {key: getattr(cfg, key) for key in (*_COMMON, *_SETTINGS[arguments.env])}
        report(
            "sample-factory 2.1.1",
            arguments.env,
            window.steps_per_second,
            frameskip=cfg.env_frameskip or 1,
            precision="fp32, channels first (it has no other)",
            config=config,
        )
    finally:
        shutil.rmtree(train_dir, ignore_errors=True)


if __name__ == "__main__":
    main()
