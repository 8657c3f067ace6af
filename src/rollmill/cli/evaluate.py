"""``rollmill eval``: evaluate a trained agent on new episodes."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rollmill.cli.command import Command, count, natural
from rollmill.cli.episode_bar import episode_bar
from rollmill.cli.playing import add_playing, deterministic, show_warnings
from rollmill.cli.user_modules import import_modules


def make_command() -> Command:
    """The command and its options."""
    command = Command(
        "eval",
        "RUN_DIR [OPTIONS]",
        "Evaluate a trained agent on new episodes.\n\n"
        "Prints the mean return with a confidence interval. Environments and seeds are not those of training.",
        run=run,
        examples=(
            "rollmill eval runs/first",
            "rollmill eval runs/first --checkpoint best --episodes 20 --video agent.mp4",
        ),
    )
    command.add_run_dir()
    command.option("--episodes", "number of episodes (default 100)", kind=count, default=100, metavar="N")
    command.option("--video", "also record one episode", kind=Path, metavar="FILE.mp4")
    command.option(
        "--num-envs",
        "environments side by side (default 8; fewer matches of Doom with many players)",
        kind=count,
        default=None,
        metavar="N",
    )
    command.option(
        "--max-episode-steps", "time limit in agent steps (default: the run's)", kind=count, default=None, metavar="N"
    )
    command.option("--seed", "seed of the evaluation (default 0)", kind=natural, default=0, metavar="S")
    command.flag("--quiet", "show no progress")
    command.add_json()
    add_playing(command)
    command.option("--task", "only this task, of a run that learns several", metavar="NAME")
    return command


def run(arguments: argparse.Namespace, overrides: dict[str, object]) -> int:
    """Run the command and return its exit code."""
    import_modules(arguments, overrides)
    from rollmill.evaluation.evaluate import evaluate
    from rollmill.runtime.watchdog import ending_simulators

    show_warnings()
    with ending_simulators(), episode_bar("evaluating", quiet=arguments.quiet) as show:
        result = evaluate(
            arguments.run_dir,
            episodes=arguments.episodes,
            seed=arguments.seed,
            deterministic=deterministic(arguments),
            video=arguments.video,
            num_envs=arguments.num_envs,
            checkpoint=arguments.checkpoint,
            device=arguments.device,
            max_episode_steps=arguments.max_episode_steps,
            trust=arguments.trust,
            policy=arguments.policy,
            task=arguments.task,
            progress=show,
        )
    print(json.dumps(result.to_dict()) if arguments.json else result.describe())
    return 0
