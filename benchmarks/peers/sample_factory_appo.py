"""Sample Factory 2.1.1, asynchronous PPO on the CPU, with the network, batch and epochs of Rollmill's presets.

Further arguments are handed to Sample Factory: ``--num_workers=4``. With ``--curve STEPS`` it trains for so many agent
steps and prints what has been reached after every thirty seconds, as a line of JSON; with ``--own`` it keeps its own
learning settings, those of its command for Doom.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import tempfile
import time
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
_DOOM: dict[str, object] = {
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
    "vizdoom": {"env": "doom_defend_the_center_flat_actions", **_DOOM},
    "battle": {"env": "doom_battle", **_DOOM},
    # A match has two engines.
    "duel": {"env": "doom_duel", **_DOOM, "env_frameskip": 2, "num_envs_per_worker": 4},
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
# What its documentation trains Doom with: a step for each batch of 2,048, with normalised observations and returns.
_OWN: dict[str, object] = {
    "batch_size": 2048,
    "num_batches_per_epoch": 1,
    "normalize_input": True,
    "normalize_returns": True,
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


def _configure(env: str, train_dir: str, overrides: list[str], *, own: bool) -> Any:
    settings = {**_COMMON, **_SETTINGS[env], **(_OWN if own else {}), "train_dir": train_dir, "experiment": "peer"}
    arguments = []
    for key, value in settings.items():
        arguments += [f"--{key}", *map(str, value)] if isinstance(value, tuple) else [f"--{key}={value}"]
    arguments += overrides
    parser, partial = parse_sf_args(argv=arguments)
    if env == "atari":
        from sf_examples.atari.atari_params import atari_override_defaults

        atari_override_defaults(partial.env, parser)
    elif env != "cartpole":
        from sf_examples.vizdoom.doom.doom_params import add_doom_env_args, doom_override_defaults

        add_doom_env_args(parser)
        doom_override_defaults(parser)
    return parse_full_cfg(parser, arguments)


class _Observer(AlgoObserver):  # type: ignore[misc]  # Sample Factory has no types
    def __init__(self, window: Window, frameskip: int) -> None:
        self._window = window
        self._frameskip = frameskip

    def on_training_step(self, runner: Any, training_iteration_since_resume: int) -> None:
        self._window.update(sum(runner.env_steps.values()) // self._frameskip)  # it counts frames
        if self._window.is_full:
            runner.cfg.train_for_env_steps = 0  # train_for_seconds would be it, but nothing counts those


class _Curve(AlgoObserver):  # type: ignore[misc]  # as above
    def __init__(self, steps: int, frameskip: int) -> None:
        self._steps, self._frameskip = steps, frameskip
        self._began: float | None = None
        self._next_at = 0.0

    def on_training_step(self, runner: Any, training_iteration_since_resume: int) -> None:
        now, steps = time.monotonic(), sum(runner.env_steps.values()) // self._frameskip
        if not steps:
            return
        self._began = self._began or now
        is_over = steps >= self._steps
        if now >= self._next_at or is_over:
            self._next_at = now + 30.0
            (objectives,) = runner.policy_avg_stats.get("true_objective", [()])
            mean = statistics.fmean(objectives) if objectives else None
            print(json.dumps({"agent_steps": steps, "seconds": now - self._began, "mean": mean}), flush=True)
        if is_over:
            runner.cfg.train_for_env_steps = 0


def main() -> None:
    parser = make_parser(__doc__ or "", tuple(_SETTINGS))
    parser.add_argument("--curve", type=float, help="train for so many agent steps instead")
    parser.add_argument("--own", action="store_true", help="its own learning settings")
    arguments, overrides = parser.parse_known_args()
    train_dir = tempfile.mkdtemp(prefix="peer-sample-factory-")
    os.chdir(train_dir)  # where ViZDoom's engines leave a folder
    try:
        _register(arguments.env)
        cfg = _configure(arguments.env, train_dir, overrides, own=arguments.own)
        frameskip = cfg.env_frameskip if cfg.summaries_use_frameskip else 1
        window = Window(arguments.seconds, arguments.warm_up)
        cfg, runner = make_runner(cfg)
        is_curve = arguments.curve is not None
        runner.register_observer(_Curve(int(arguments.curve), frameskip) if is_curve else _Observer(window, frameskip))
        if runner.init() != ExperimentStatus.SUCCESS or runner.run() != ExperimentStatus.SUCCESS:
            raise SystemExit("Sample Factory reports a failure; its log is above")
        if is_curve:
            return
        config = {key: getattr(cfg, key) for key in (*_COMMON, *_SETTINGS[arguments.env])}
        report(
            "sample-factory",
            arguments.env,
            window.steps_per_second,
            frameskip=cfg.env_frameskip or 1,
            precision="fp32, channels first (it has no other)",
            config=config,
            packages=("sample-factory", "torch"),
        )
    finally:
        shutil.rmtree(train_dir, ignore_errors=True)


if __name__ == "__main__":
    main()
