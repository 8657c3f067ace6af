"""What each command of the program takes, and says with ``--help``."""

from __future__ import annotations

import argparse
from pathlib import Path

import rollmill
from rollmill.cli_arguments import Command, count, natural, seconds, whole_number

__all__ = ["BENCHED_PRESET", "parsers"]

BENCHED_PRESET = "atari/breakout"

_USAGE = {
    "train": "PRESET [OPTIONS] [--KEY VALUE ...]",
    "tune": "PRESET [OPTIONS] [--KEY VALUE ...]",
    "eval": "RUN_DIR [OPTIONS]",
    "watch": "RUN_DIR [OPTIONS]",
    "plot": "RUN_DIR [RUN_DIR ...] [OPTIONS]",
    "bench": "{sim,sampler,train,ring,replay} [PRESET] [OPTIONS] [--KEY VALUE ...]",
    "verify": "PRESET [OPTIONS] [--KEY VALUE ...]",
    "report": "RUN [RUN ...] [OPTIONS]",
    "envs": "[FAMILY] [OPTIONS]",
}
_PRESET = (
    "the environment, e.g. gym/CartPole-v1 (`rollmill envs` lists all); one of your own as module:Class, or by the "
    "name that it is registered under"
)


def parsers() -> tuple[argparse.ArgumentParser, dict[str, Command]]:
    """The program's parser, and that of each of its commands by name."""
    given = (_train(), _tune(), _eval(), _watch(), _plot(), _report(), _verify(), _bench(), _envs())
    commands = {command.parser.prog.split()[-1]: command for command in given}
    parser = argparse.ArgumentParser(
        prog="rollmill",
        usage="rollmill COMMAND ...",
        description="Train reinforcement-learning agents at the speed of the machine, or reproducibly.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="commands:\n"
        + "\n".join(f"  {name:<8}{command.summary.splitlines()[0]}" for name, command in commands.items())
        + "\n\nFirst steps:\n"
        "  rollmill train gym/CartPole-v1      train an agent\n"
        "  rollmill eval RUN_DIR               measure the trained agent\n"
        "  rollmill COMMAND --help             show the options of a command",
    )
    parser.add_argument("--version", action="version", version=f"rollmill {rollmill.__version__}")
    return parser, commands


def _train() -> Command:
    train = Command(
        "train",
        _USAGE["train"],
        "Train an agent.\n\n"
        "The run directory receives checkpoints, metrics, TensorBoard events and the learning curve. Ctrl-C\n"
        "saves what was learned; --resume continues.",
        examples=(
            "rollmill train gym/CartPole-v1",
            "rollmill train atari/pong --total-steps 3e6 --seed 2 --learning-rate 5e-4",
            "rollmill train gym/Pendulum-v1 --algo sac",
            "rollmill train mymodule:MyEnv --run-dir runs/first",
            "rollmill train --resume --run-dir runs/first --total-steps 2e6",
        ),
    )
    train.parser.add_argument("preset", metavar="PRESET", nargs="?", help=f"{_PRESET}; not needed with --resume")
    train.option(
        "--total-steps", "agent steps to train for, e.g. 3e6 (default: the preset's)", kind=whole_number, metavar="N"
    )
    train.option("--run-dir", "the run's directory (default: a new one in runs/)", kind=Path, metavar="DIR")
    train.option("--seed", "seed of all random streams (default 1)", kind=natural, metavar="S")
    _add_algo(train, "ppo, impala, dqn, ddpg, td3, sac or a registered one")
    train.flag("--resume", "continue the run in --run-dir with its settings; those given here replace them")
    train.flag("--tune", "first find the fastest use of the cores, as `rollmill tune` does; not with --resume")
    train.option("--settings", "a JSON file of settings, such as tuned.json; those given here win", metavar="FILE")
    train.flag("--quiet", "show no progress")
    _add_trust(train, "run the code that the resumed run or the settings file names, even if another user wrote it")
    _add_import(train)
    return train


def _tune() -> Command:
    tune = Command(
        "tune",
        _USAGE["tune"],
        "Find the fastest use of this machine's cores.\n\n"
        "Measures simulation, inference and learning, predicts the speed of every allocation of workers and\n"
        "environments, tries the best, and writes tuned.json. Settings that you give are kept.",
        examples=(
            "rollmill tune atari/pong",
            "rollmill train atari/pong --settings tuning/tuned.json",
            "rollmill tune atari/pong --curves tuning/curves.json --cores 64",
        ),
    )
    tune.parser.add_argument("preset", metavar="PRESET", help=_PRESET)
    _add_algo(tune, "ppo, impala, dqn, ddpg, td3, sac or a registered one")
    tune.option("--seconds", "time for trying candidates (default 60)", kind=seconds, default=60.0, metavar="N")
    tune.option("--curves", "a file of measured throughput curves; then nothing is measured", metavar="FILE.json")
    tune.option("--cores", "number of cores, instead of this machine's (or the curves')", kind=count, metavar="M")
    tune.option(
        "--output",
        "directory of tuned.json, curves.json, tuning.txt and tuning.png (default tuning)",
        kind=Path,
        default="tuning",
        metavar="DIR",
    )
    tune.flag("--verbose", "also show equations, all candidates and what single changes would bring")
    tune.flag("--json", "print the result as one line of JSON, the last of the output")
    _add_import(tune)
    return tune


def _eval() -> Command:
    evaluate = Command(
        "eval",
        _USAGE["eval"],
        "Evaluate a trained agent on new episodes.\n\n"
        "Prints the mean return with a confidence interval. Environments and seeds are not those of training.",
        examples=(
            "rollmill eval runs/first",
            "rollmill eval runs/first --checkpoint best --episodes 20 --video agent.mp4",
        ),
    )
    _add_run_dir(evaluate)
    evaluate.option("--episodes", "number of episodes (default 100)", kind=count, default=100, metavar="N")
    evaluate.option("--video", "also record one episode", kind=Path, metavar="FILE.mp4")
    evaluate.option("--num-envs", "environments side by side (default 8)", kind=count, default=8, metavar="N")
    evaluate.option(
        "--max-episode-steps", "time limit in agent steps (default: the run's)", kind=count, default=None, metavar="N"
    )
    evaluate.option("--seed", "seed of the evaluation (default 0)", kind=natural, default=0, metavar="S")
    evaluate.flag("--json", "print the result as one line of JSON")
    _add_playing(evaluate)
    return evaluate


def _watch() -> Command:
    watch = Command(
        "watch",
        _USAGE["watch"],
        "Watch an agent play in a window, or write a video where there is no display.",
        examples=(
            "rollmill watch runs/first",
            "rollmill watch runs/first --follow",
            "rollmill watch runs/first --video a.mp4",
        ),
    )
    _add_run_dir(watch)
    watch.option(
        "--episodes",
        "stop after so many episodes (default: one without a window, endless in a window)",
        kind=count,
        metavar="N",
    )
    watch.option("--video", "write a video instead of opening a window", kind=Path, metavar="FILE.mp4")
    watch.flag("--follow", "load the newest checkpoint before each episode, while the run is still training")
    watch.option("--seed", "seed of the first episode (default 0)", kind=natural, default=0, metavar="S")
    _add_playing(watch)
    return watch


def _plot() -> Command:
    plot = Command(
        "plot",
        _USAGE["plot"],
        "Draw learning curves; several runs share one picture, with their mean and range.",
        examples=("rollmill plot runs/first", "rollmill plot runs/seed1 runs/seed2 --output curves.png"),
    )
    plot.parser.add_argument("run_dirs", metavar="RUN_DIR", nargs="+", type=Path, help="directories of runs")
    plot.option("--output", "the picture (default: RUN_DIR/learning_curve.png)", kind=Path, metavar="FILE.png")
    plot.option("--title", "its title (default: the run's name)", metavar="TEXT")
    return plot


def _report() -> Command:
    report = Command(
        "report",
        _USAGE["report"],
        "Compare runs on one page: learning curves and scores with confidence intervals.\n\n"
        "Runs that differ only in their seed form one method, named by the settings that differ from the\n"
        "others'. NAME=RUN_DIR names the method instead.",
        examples=(
            "rollmill report runs/*",
            "rollmill report ppo=runs/a ppo=runs/b impala=runs/c --output report",
        ),
    )
    report.parser.add_argument("runs", metavar="RUN", nargs="+", help="directory of a run, or NAME=RUN_DIR")
    report.option(
        "--output",
        "directory of the page and its pictures (default report)",
        kind=Path,
        default="report",
        metavar="DIR",
    )
    report.option("--title", "the page's title (default: how many runs are compared)", default="", metavar="TEXT")
    report.flag("--json", "print the figures as one line of JSON, the last of the output")
    return report


def _verify() -> Command:
    verify = Command(
        "verify",
        _USAGE["verify"],
        "Check that training is reproducible.\n\n"
        "Trains twice with the same settings, the second time with other workers, random delays and a resume\n"
        "half way, and compares every update bit for bit. In lockstep both must be equal; the first difference\n"
        "is named. The exit code is 0 if all updates are equal, else 1.",
        examples=("rollmill verify gym/CartPole-v1", "rollmill verify atari/pong --updates 3 --lag 0"),
    )
    verify.parser.add_argument("preset", metavar="PRESET", help=_PRESET)
    verify.option("--updates", "updates to compare (default 5)", kind=count, default=5, metavar="N")
    verify.option("--delay", "longest delay of the second run (default 0.05)", kind=seconds, metavar="SECONDS")
    verify.option("--algo", "ppo or impala (default: the preset's, asynchronous PPO)", metavar="NAME")
    verify.flag("--json", "print the result as one line of JSON, the last of the output")
    _add_import(verify)
    return verify


def _bench() -> Command:
    bench = Command(
        "bench",
        _USAGE["bench"],
        "Measure speed.\n\n"
        "  sim      environments alone, without a policy\n"
        "  sampler  simulation and inference with random actions, without learning\n"
        "  train    the whole system, beside the most that this machine could reach\n"
        "  ring     the queue between processes (takes no PRESET and no settings)\n"
        "  replay   the prioritised replay, beside other libraries' (takes no PRESET and no settings)",
        examples=("rollmill bench train atari/breakout", "rollmill bench sim gym/CartPole-v1 --num-envs 256"),
    )
    bench.parser.add_argument(
        "what", metavar="WHAT", choices=("sim", "sampler", "train", "ring", "replay"), help="what to measure, see above"
    )
    bench.parser.add_argument(
        "preset", metavar="PRESET", nargs="?", help=f"the environment (default: {BENCHED_PRESET})"
    )
    measured = "how long to measure, besides setting up and warming up (default 30)"
    bench.option("--seconds", measured, kind=seconds, default=30.0, metavar="N")
    bench.flag("--verbose", "also show every measured value and where each process's time went")
    bench.flag("--json", "print the result as one line of JSON, the last of the output")
    bench.option(
        "--peers",
        "replay: folder with the other libraries' environments (default: $ROLLMILL_PEERS, or the checkout)",
        kind=Path,
        metavar="DIR",
    )
    bench.flag("--install-peers", "replay: install the other libraries that are missing")
    _add_import(bench)
    return bench


def _envs() -> Command:
    envs = Command(
        "envs",
        _USAGE["envs"],
        "List the environments that have a preset.\n\n"
        "Any other Gymnasium id, and any environment of your own (module:Class), can be trained as well.",
        examples=("rollmill envs", "rollmill envs atari"),
    )
    envs.parser.add_argument("family", metavar="FAMILY", nargs="?", help="only those of one family, e.g. vizdoom")
    _add_import(envs)
    return envs


def _add_algo(command: Command, names: str) -> None:
    command.option("--algo", f"the algorithm: {names} (default: the preset's, asynchronous PPO)", metavar="NAME")
    command.option(
        "--protocol",
        "machado: play and count Atari games by the protocol of Machado et al. (2018), with sticky actions",
        metavar="NAME",
    )


def _add_run_dir(command: Command) -> None:
    command.parser.add_argument("run_dir", metavar="RUN_DIR", type=Path, help="directory of a run")


def _add_import(command: Command) -> None:
    command.option(
        "--import",
        "import a module or a .py file that registers environments, models or algorithms; may be given several times",
        metavar="MODULE",
        repeatable=True,
        dest="modules",
    )


def _add_trust(command: Command, what: str) -> None:
    command.flag("--trust", what)


def _add_playing(command: Command) -> None:
    command.option("--checkpoint", "latest (default), best, or the path of one", default="latest", metavar="WHICH")
    command.option("--device", "where the network runs (default cpu)", default="cpu", metavar="DEVICE")
    command.flag("--deterministic", "take the most probable action (default for off-policy algorithms)")
    command.flag("--explore", "sample or explore as in training (default for on-policy algorithms)")
    _add_trust(command, "run the code that the run's files name, even if another user wrote them (docs/security.md)")
    _add_import(command)
