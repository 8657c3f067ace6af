"""A command's own options, separated from settings."""

from __future__ import annotations

import pytest

from rollmill.cli.command import split_overrides


@pytest.mark.parametrize(
    ("words", "known", "overrides"),
    [
        ("atari/pong --lr 1e-3", "atari/pong", "--lr 1e-3"),
        ("--lr 1e-3 atari/pong", "atari/pong", "--lr 1e-3"),
        ("--lr=1e-3 atari/pong --seed 3", "atari/pong --seed 3", "--lr=1e-3"),
        ("atari/pong --fast --resume", "atari/pong --resume", "--fast"),
        ("--resume atari/pong", "--resume atari/pong", ""),
        ("--seed=3 atari/pong", "--seed=3 atari/pong", ""),
        ("atari/pong --clip -1", "atari/pong", "--clip -1"),
        ("--fast --seed 3", "--seed 3", "--fast"),
        ("--run_dir a_b --total_steps=1_0 --num_envs 3", "--run-dir a_b --total-steps=1_0", "--num_envs 3"),
    ],
)
def test_settings_are_told_apart_from_the_commands_own_options(words: str, known: str, overrides: str) -> None:
    options = {"--seed": True, "--resume": False, "--run-dir": True, "--total-steps": True}
    assert split_overrides(words.split(), options) == (known.split(), overrides.split())
