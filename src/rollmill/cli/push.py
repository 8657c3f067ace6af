"""``rollmill push``: publish a trained agent on the Hugging Face Hub."""

from __future__ import annotations

import argparse
import json

from rollmill.cli.command import Command, count, natural
from rollmill.cli.playing import add_playing, deterministic, show_warnings
from rollmill.cli.user_modules import import_modules


def make_command() -> Command:
    """The command and its options."""
    command = Command(
        "push",
        "RUN_DIR USER/NAME [OPTIONS]",
        "Publish a trained agent on the Hugging Face Hub.\n\n"
        "With it go its settings, an evaluation, a video and a page that tells all of it.\n"
        'rollmill.load("hf://USER/NAME") loads it again.\n\n'
        "Log in first: hf auth login, or the environment variable HF_TOKEN.",
        run=run,
        examples=(
            "rollmill push runs/first me/cartpole-ppo",
            "rollmill push runs/first me/cartpole-ppo --to-folder look",
            "rollmill push runs/first me/cartpole-ppo --checkpoint best --episodes 200 --private",
        ),
    )
    command.add_run_dir()
    command.parser.add_argument("name", metavar="USER/NAME", help="repository, which is made if it does not exist")
    command.option("--episodes", "episodes of the evaluation (default 100)", kind=count, default=100, metavar="N")
    command.option("--seed", "seed of the evaluation (default 0)", kind=natural, default=0, metavar="S")
    command.flag("--no-video", "do not film an episode")
    command.option("--to-folder", "write what would be published to a new folder, and publish nothing", metavar="DIR")
    command.flag("--private", "make a new repository visible to its owner alone")
    command.add_json()
    add_playing(command)
    return command


def run(arguments: argparse.Namespace, overrides: dict[str, object]) -> int:
    """Run the command and return its exit code."""
    import_modules(arguments, overrides)
    from rollmill.evaluation.hub import push
    from rollmill.runtime.watchdog import ending_simulators

    show_warnings()
    with ending_simulators():
        found = push(
            arguments.run_dir,
            arguments.name,
            checkpoint=arguments.checkpoint,
            policy=arguments.policy,
            episodes=arguments.episodes,
            seed=arguments.seed,
            deterministic=deterministic(arguments),
            device=arguments.device,
            video=not arguments.no_video,
            private=arguments.private,
            to_folder=arguments.to_folder,
            trust=arguments.trust,
        )
    if arguments.json:
        print(json.dumps({"name": found.name, "url": found.url, "mean_return": found.result.mean}))
    else:
        print(f"{found.result.describe()}\n{found.url}")
    return 0
