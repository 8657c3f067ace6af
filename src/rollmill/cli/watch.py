"""``rollmill watch``: show an agent in a window, or write a video."""

from __future__ import annotations

import argparse
from pathlib import Path

from rollmill.cli.command import Command, count, natural
from rollmill.cli.playing import add_playing, deterministic, show_warnings
from rollmill.cli.user_modules import import_modules


def make_command() -> Command:
    """The command and its options."""
    command = Command(
        "watch",
        "RUN_DIR [OPTIONS]",
        "Watch an agent play in a window, or write a video where there is no display.",
        run=run,
        examples=(
            "rollmill watch runs/first",
            "rollmill watch runs/first --follow",
            "rollmill watch runs/first --video a.mp4",
        ),
    )
    command.add_run_dir()
    command.option(
        "--episodes",
        "stop after so many episodes (default: one without a window, endless in a window)",
        kind=count,
        metavar="N",
    )
    command.option("--video", "write a video instead of opening a window", kind=Path, metavar="FILE.mp4")
    command.flag("--follow", "load the newest checkpoint before each episode, while the run is still training")
    command.option("--seed", "seed of the first episode (default 0)", kind=natural, default=0, metavar="S")
    add_playing(command)
    command.option("--task", "only this task, of a run that learns several", metavar="NAME")
    return command


def run(arguments: argparse.Namespace, overrides: dict[str, object]) -> int:
    """Run the command and return its exit code."""
    import_modules(arguments, overrides)
    from rollmill.evaluation.watch import watch
    from rollmill.runtime.watchdog import ending_simulators

    show_warnings()
    with ending_simulators():
        watch(
            arguments.run_dir,
            episodes=arguments.episodes,
            video=arguments.video,
            follow=arguments.follow,
            seed=arguments.seed,
            deterministic=deterministic(arguments),
            checkpoint=arguments.checkpoint,
            device=arguments.device,
            say=lambda text: print(text, flush=True),
            trust=arguments.trust,
            policy=arguments.policy,
            task=arguments.task,
        )
    return 0
