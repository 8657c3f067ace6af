"""The part of ``--help`` about settings: the most important ones, or all."""

from __future__ import annotations

import argparse
import contextlib
import io
import shutil
import textwrap
from typing import Final

from rollmill.cli.command import Command
from rollmill.cli.user_modules import import_modules
from rollmill.settings.config import Config
from rollmill.settings.option_list import describe, list_options
from rollmill.settings.option_values import format_value
from rollmill.settings.options import flatten, parse_overrides

_UNNAMED: Final = frozenset({"preset"})  # Part of the configuration, but an argument of its own on the command line.
_SHORT_KEYS: Final = "the last part of a key is enough where it is unique (--learning-rate 1e-3)"
_ALWAYS: Final = {
    "regime": "async (fastest), lockstep (reproducible) or replay (off-policy)",
    "init_from": "run directory or checkpoint file whose weights to begin with",
    "learner.freeze": "parts of the network that keep their weights, such as encoder",
    "num_envs": "environments that run at the same time",
    "max_seconds": "stop after this many seconds of training",
    "learner.learning_rate": "learning rate at the start",
    "learner.schedule": "of the learning rate: constant, linear, kl, or points such as 0:3e-4,1e6:1e-4",
    "learner.discount": "gamma, the discount factor for each agent step",
    "model.mlp_sizes": "widths of the hidden layers, for vector observations",
}
ON_POLICY: Final = {
    **_ALWAYS,
    "rollout_length": "agent steps of a trajectory in each environment",
    "learner.batch_size": "agent steps of a batch",
    "learner.minibatches": "parts of a batch, each for one SGD step",
    "learner.epochs": "passes over each batch",
    "learner.gae_lambda": "lambda of the advantage estimator (GAE)",
    "learner.clip_range": "clipping of PPO's probability ratio",
    "learner.entropy_coef": "weight of the entropy bonus; more explores more",
    "model.core": "memory of the network: none, gru or lstm",
}
OFF_POLICY: Final = {
    **_ALWAYS,
    "learner.batch_size": "transitions of a batch, for one SGD step",
    "replay.capacity": "agent steps that the replay holds",
    "replay.min_size": "agent steps before the first SGD step",
    "replay.update_interval": "agent steps for each SGD step",
    "replay.n_step": "steps of n-step returns",
    "off_policy.target_update_every": "SGD steps between updates of the target networks",
    "off_policy.epsilon_end": "DQN: share of random actions after the decay",
    "off_policy.noise_std": "DDPG, TD3: exploration noise, in half action ranges",
}


def settings_help(command: Command, known: list[str], overrides: list[str], shows_all: bool) -> str:
    """The part of a command's ``--help`` about settings.

    Args:
        command: The command, which takes settings.
        known: The words of the command itself. Where they name a preset, its values are shown, else the defaults.
        overrides: The words of settings, which replace the preset's values.
        shows_all: All settings are shown, not only those that matter most.
    """
    arguments = _complete(command, known)
    config: Config | None = None
    whose = "their defaults"
    if "PRESET" in command.parser.format_usage():
        whose += " (PRESET before --help shows the values of a preset)"
    if getattr(arguments, "preset", None) is not None and not getattr(arguments, "resume", None):
        assert arguments is not None
        from rollmill.api import make_config

        values = parse_overrides(overrides)
        import_modules(arguments, values)
        algo, protocol = getattr(arguments, "algo", None), getattr(arguments, "protocol", None)
        config = make_config(arguments.preset, values, algo=algo, protocol=protocol)
        whose = f"the values of {arguments.preset}"
    if shows_all:
        listed = describe(Config, values=config, hidden=_UNNAMED, width=_columns())
        return f"\nall settings, as --KEY VALUE, with {whose}; {_SHORT_KEYS}:\n\n{listed}"
    return (
        f"\nthe settings that matter most, as --KEY VALUE, with {whose}:\n{_main_settings(config)}\n\n"
        f"{_SHORT_KEYS[0].upper()}{_SHORT_KEYS[1:]}. --help-all lists all settings."
    )


def _complete(command: Command, known: list[str]) -> argparse.Namespace | None:
    """The words of a command, if it would take them: help needs no preset."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            return command.parser.parse_args(known)
    except SystemExit:
        return None


def _main_settings(values: Config | None) -> str:
    """The settings that matter most with their values, or with the defaults of an on-policy run."""
    chosen = OFF_POLICY if values is not None and values.in_replay else ON_POLICY
    if values is None:
        shown = {option.key: option.default for option in list_options(Config)}
    else:
        shown = {key: format_value(value) for key, value in flatten(values).items()}
    rows = [(f"--{key.replace('_', '-')} {shown[key]}", text) for key, text in chosen.items() if key in shown]
    # A long value, such as the path of a checkpoint, has a line of its own.
    width = min(max(len(left) for left, _ in rows) + 4, _columns() // 2)
    lines = []
    for left, text in rows:
        indent = f"  {left}".ljust(width)
        if len(indent) > width or indent[-1] != " ":
            lines.append(indent)
            indent = " " * width
        lines += textwrap.wrap(text, _columns(), initial_indent=indent, subsequent_indent=" " * width)
    return "\n".join(lines)


def _columns() -> int:
    return min(max(shutil.get_terminal_size().columns, 70), 120)
