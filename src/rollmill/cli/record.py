"""``rollmill record``: write an agent's episodes as a Minari dataset."""

from __future__ import annotations

import argparse
import json

from rollmill.cli.command import Command, count, natural
from rollmill.cli.episode_bar import episode_bar
from rollmill.cli.playing import add_playing, deterministic, show_warnings
from rollmill.cli.user_modules import import_modules


def make_command() -> Command:
    """The command and its options."""
    command = Command(
        "record",
        "RUN_DIR DATASET [OPTIONS]",
        "Let a trained agent play, and write its episodes as a Minari dataset.\n\n"
        "Off-policy runs begin with the steps of a dataset (--replay.preload NAMESPACE/NAME-v0).",
        run=run,
        examples=(
            "rollmill record runs/first cartpole/expert-v0",
            "rollmill record runs/first cartpole/best-v0 --checkpoint best --episodes 500",
        ),
    )
    command.add_run_dir()
    command.parser.add_argument("dataset", metavar="DATASET", help="name of the new dataset: NAMESPACE/NAME-v0")
    command.option("--episodes", "number of episodes (default 100)", kind=count, default=100, metavar="N")
    command.option(
        "--max-episode-steps", "time limit in agent steps (default: the run's)", kind=count, default=None, metavar="N"
    )
    command.option("--seed", "seed of the episodes (default 0)", kind=natural, default=0, metavar="S")
    command.add_json()
    add_playing(command)
    command.option("--task", "the task to play, of a run that learns several", metavar="NAME")
    return command


def run(arguments: argparse.Namespace, overrides: dict[str, object]) -> int:
    """Run the command and return its exit code."""
    import_modules(arguments, overrides)
    from rollmill.evaluation.demonstrations import record
    from rollmill.runtime.watchdog import ending_simulators

    show_warnings()
    with ending_simulators(), episode_bar("recording") as show:
        found = record(
            arguments.run_dir,
            arguments.dataset,
            episodes=arguments.episodes,
            seed=arguments.seed,
            deterministic=deterministic(arguments),
            checkpoint=arguments.checkpoint,
            device=arguments.device,
            trust=arguments.trust,
            policy=arguments.policy,
            task=arguments.task,
            max_episode_steps=arguments.max_episode_steps,
            progress=lambda done, last: show(done, arguments.episodes),
        )
    mean = float(found.returns.mean())
    if arguments.json:
        result = {"dataset": found.name, "folder": str(found.folder), "episodes": len(found.returns)}
        print(json.dumps({**result, "steps": found.steps, "mean_return": mean}))
    else:
        print(
            f"{found.name}: {len(found.returns)} episodes, {found.steps:,} agent steps, mean return {mean:.2f}\n"
            f"in {found.folder}"
        )
    return 0
