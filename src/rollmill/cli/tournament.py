"""``rollmill tournament``: let trained agents and scripted players meet."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rollmill.cli.command import Command, count, natural, printer
from rollmill.cli.playing import add_how_to_play, deterministic, show_warnings
from rollmill.cli.user_modules import import_modules


def make_command() -> Command:
    """The command and its options."""
    command = Command(
        "tournament",
        "PLAYER PLAYER ... [OPTIONS]",
        "Let trained agents and scripted players meet, every pair in every seat.\n\n"
        "A player is a run directory, a checkpoint file, random, or a name that rollmill.register_player was given.",
        run=run,
        examples=(
            "rollmill tournament runs/first random",
            "rollmill tournament runs/first runs/second --matches 500 --json",
            "rollmill tournament runs/first runs/second random --output page",
            "rollmill tournament runs/first win_or_block --import connect_four_players.py",
        ),
    )
    command.parser.add_argument("players", metavar="PLAYER", nargs="+", help="a run, a checkpoint or a name")
    command.option("--env", "the environment (default: that of all players)", metavar="NAME")
    command.option("--matches", "matches of each pair in each seat (default 100)", kind=count, default=100, metavar="N")
    command.option("--seed", "seed of the matches (default 0)", kind=natural, default=0, metavar="S")
    command.option("--output", "also write a page with the results and a video of each pair", kind=Path, metavar="DIR")
    command.flag("--quiet", "show no progress")
    command.add_json()
    add_how_to_play(command)
    return command


def run(arguments: argparse.Namespace, overrides: dict[str, object]) -> int:
    """Run the command and return its exit code."""
    import_modules(arguments, overrides)
    from rollmill.comparing.tournament_page import VIDEOS, check_page_folder, write_tournament_page
    from rollmill.evaluation.tournament import tournament
    from rollmill.runtime.watchdog import ending_simulators

    show_warnings()
    if arguments.output is not None:
        check_page_folder(arguments.output)
    with ending_simulators():
        result = tournament(
            arguments.players,
            env=arguments.env,
            matches=arguments.matches,
            seed=arguments.seed,
            deterministic=deterministic(arguments),
            device=arguments.device,
            say=printer(quiet=arguments.quiet),
            videos=None if arguments.output is None else arguments.output / VIDEOS,
            trust=arguments.trust,
        )
    try:
        if arguments.output is not None:
            print(write_tournament_page(result, arguments.output))
    finally:  # Matches that were played are told, even if the disk is full.
        print(json.dumps(result.to_dict()) if arguments.json else result.describe())
    return 0
