"""``rollmill bench``: measure speed."""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Mapping
from pathlib import Path

from rollmill.cli.command import Command, seconds
from rollmill.cli.user_modules import import_modules
from rollmill.settings.option_values import OptionError

_DEFAULT_PRESET = "atari/breakout"
# What can be measured, and the module of rollmill.benchmarking that measures it.
_MODULES = {
    "sim": "sim",
    "sampler": "sampler",
    "train": "train",
    "population": "population",
    "ring": "ring",
    "replay": "replay_speed",
}


def make_command() -> Command:
    """The command and its options."""
    command = Command(
        "bench",
        "{sim,sampler,train,population,ring,replay} [PRESET] [OPTIONS] [--KEY VALUE ...]",
        "Measure speed.\n\n"
        "  sim         environments alone, without a policy\n"
        "  sampler     simulation and inference with random actions, without learning\n"
        "  train       the whole system, beside its environments alone\n"
        "  population  the whole system with 1, 4, 8 and 12 policies\n"
        "  ring        the queue between processes (takes no PRESET and no settings)\n"
        "  replay      the prioritised replay, beside other libraries' (takes no PRESET and no settings)",
        run=run,
        examples=("rollmill bench train atari/breakout", "rollmill bench sim gym/CartPole-v1 --num-envs 256"),
    )
    command.parser.add_argument("what", metavar="WHAT", choices=_MODULES, help="what to measure, see above")
    command.parser.add_argument(
        "preset", metavar="PRESET", nargs="?", help=f"the environment (default: {_DEFAULT_PRESET})"
    )
    measured = "how long to measure, besides setting up and warming up (default 30)"
    command.option("--seconds", measured, kind=seconds, default=30.0, metavar="N")
    command.flag("--verbose", "also show every measured value and where each process's time went")
    command.add_algorithm()
    command.add_json()
    command.option(
        "--peers",
        "replay: folder with the other libraries' environments (default: $ROLLMILL_PEERS, or the checkout)",
        kind=Path,
        metavar="DIR",
    )
    command.flag("--install-peers", "replay: install the other libraries that are missing")
    command.add_import()
    return command


def run(arguments: argparse.Namespace, overrides: dict[str, object]) -> int:
    """Run the command and return its exit code."""
    import_modules(arguments, overrides)
    benchmark = importlib.import_module(f"rollmill.benchmarking.{_MODULES[arguments.what]}")
    if arguments.what != "replay" and (arguments.peers is not None or arguments.install_peers):
        raise OptionError("--peers and --install-peers: only `rollmill bench replay` compares with peers")
    if arguments.what in ("ring", "replay"):
        given = [*overrides, *(name for name in ("algo", "protocol") if getattr(arguments, name) is not None)]
        if given:
            raise OptionError(f"the benchmark {arguments.what!r} takes no settings; given: {', '.join(given)}")
        if arguments.preset is not None:
            raise OptionError(f"the benchmark {arguments.what!r} takes no preset; given: {arguments.preset}")
        peers = {"environments": arguments.peers, "install_peers": arguments.install_peers}
        result: Mapping[str, object] = benchmark.run(
            seconds=arguments.seconds, **(peers if arguments.what == "replay" else {})
        )
    else:
        from rollmill.benchmarking.subject import Subject

        subject = Subject(arguments.preset or _DEFAULT_PRESET, overrides, arguments.algo, arguments.protocol)
        result = benchmark.run(subject, seconds=arguments.seconds)
    if arguments.json:
        print(json.dumps(result))
        return 0
    from rollmill.benchmarking.summary import details, summary

    print(summary(arguments.what, result))
    print(f"\n{details(result)}" if arguments.verbose else "(--verbose shows all measured values.)")
    return 0
