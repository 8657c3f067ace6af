"""What each command of the program takes, and says with ``--help``."""

from __future__ import annotations

import argparse
from pathlib import Path

import rollmill
from rollmill.cli_arguments import Command, count, natural, seconds, whole_number

__all__ = ["BENCHED_PRESET", "parsers"]

BENCHED_PRESET = "atari/breakout"

_USAGE = {
    "train": "PRESET [--total-steps N] [--run-dir DIR] [--seed S] [--resume] [--tune] [--import MODULE] "
    "[--KEY VALUE ...]",
    "tune": "PRESET [--algo NAME] [--seconds N] [--curves FILE.json] [--cores M] [--output DIR] [--KEY VALUE ...]",
    "eval": "RUN_DIR [--episodes N] [--video FILE.mp4] [--json] [...]",
    "watch": "RUN_DIR [--video FILE.mp4] [--episodes N] [--follow] [...]",
    "plot": "RUN_DIR [RUN_DIR ...] [--output FILE.png]",
    "bench": "{sim,sampler,train,ring,replay} [PRESET] [--seconds N] [--json] [--KEY VALUE ...]",
    "verify": "PRESET [--updates N] [--lag K] [--algo NAME] [--json] [--KEY VALUE ...]",
    "report": "RUN [RUN ...] [--output DIR] [--title TEXT] [--json]",
    "envs": "[FAMILY] [--import MODULE]",
}


def parsers() -> tuple[argparse.ArgumentParser, dict[str, Command]]:
    """The program's parser, and that of each of its commands by name."""
    train = Command("train", _USAGE["train"], "Train an agent. Any setting is given as --KEY VALUE.")
    train.parser.add_argument(
        "preset",
        metavar="PRESET",
        nargs="?",
        help="what to train (`rollmill envs` lists all presets); optional to resume",
    )
    train.option("--total-steps", "agent steps to train for, e.g. 3e6", kind=whole_number, metavar="N")
    train.option("--run-dir", "the run's directory (default: a new one in runs/)", kind=Path, metavar="DIR")
    train.option("--seed", "seed of all random streams", kind=natural, metavar="S")
    train.option("--algo", "ppo, impala, dqn, ddpg, td3 or sac, instead of the preset's APPO", metavar="NAME")
    train.option("--protocol", "machado: how Atari games are played and counted (sticky actions, ...)", metavar="NAME")
    train.flag("--resume", "go on with the run in --run-dir: its settings, those given here over them")
    train.flag("--tune", "first find the fastest allocation of the cores (rollmill tune); a resumed run keeps its own")
    train.option("--settings", "a file of settings, such as tuned.json; those given here go over them", metavar="FILE")
    train.flag("--quiet", "show no progress")
    _add_import(train)

    tune = Command(
        "tune",
        _USAGE["tune"],
        "Find the fastest allocation of the cores: workers, learners and, where free, environments and groups.\n\n"
        "Says what limits the machine and what each change would bring, and leaves tuned.json, which\n"
        "`rollmill train PRESET --settings DIR/tuned.json` takes. Any setting is given as --KEY VALUE, and kept.",
    )
    tune.parser.add_argument("preset", metavar="PRESET", help="what to train (`rollmill envs` lists all presets)")
    tune.option("--algo", "ppo, impala, dqn, ddpg, td3 or sac, instead of the preset's APPO", metavar="NAME")
    tune.option("--protocol", "machado: how Atari games are played and counted (sticky actions, ...)", metavar="NAME")
    tune.option(
        "--seconds",
        "for trying candidates, beside the preset itself (default 60)",
        kind=seconds,
        default=60.0,
        metavar="N",
    )
    tune.option("--curves", "measured throughput of actors and learners: measure nothing", metavar="FILE.json")
    tune.option("--cores", "so many cores instead of this machine's, or the curves'", kind=count, metavar="M")
    tune.option(
        "--output",
        "directory of tuned.json, curves, report and picture (default tuning)",
        kind=Path,
        default="tuning",
        metavar="DIR",
    )
    tune.flag("--json", "print the result as one line of JSON, the last of the output")
    _add_import(tune)

    evaluate = Command("eval", _USAGE["eval"], "Evaluate a trained agent on environments and seeds of its own.")
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

    watch = Command(
        "watch", _USAGE["watch"], "Watch an agent play: in a window, or as a video where there is no display."
    )
    _add_run_dir(watch)
    watch.option("--episodes", "stop after so many episodes (default: 1, or endless in a window)", kind=count)
    watch.option("--video", "write a video instead of opening a window", kind=Path, metavar="FILE.mp4")
    watch.flag("--follow", "go on, with the newest checkpoint of a run that is still training for each episode")
    watch.option("--seed", "seed of the first episode (default 0)", kind=natural, default=0, metavar="S")
    _add_playing(watch)

    plot = Command("plot", _USAGE["plot"], "Draw learning curves; several runs are overlaid with their mean and range.")
    plot.parser.add_argument("run_dirs", metavar="RUN_DIR", nargs="+", type=Path, help="directories of runs")
    plot.option("--output", "the picture (default: RUN_DIR/learning_curve.png)", kind=Path, metavar="FILE.png")
    plot.option("--title", "its title (default: the run's name)", metavar="TEXT")

    bench = Command(
        "bench",
        _USAGE["bench"],
        "Measure speed.\n\n"
        "sim: environments alone; sampler: all but the learner, with a random policy; train: everything, beside the\n"
        "machine's bound; ring: the queue between processes; replay: prioritised replay, beside its peers. Any\n"
        "setting is given as --KEY VALUE, but for ring and replay, which have none (and no PRESET).",
    )
    bench.parser.add_argument("what", choices=("sim", "sampler", "train", "ring", "replay"), help="what to measure")
    bench.parser.add_argument(
        "preset", metavar="PRESET", nargs="?", help=f"of sim, sampler and train (default: {BENCHED_PRESET})"
    )
    measured = "how long to measure, without what has to be set up (default 30)"
    bench.option("--seconds", measured, kind=seconds, default=30.0, metavar="N")
    bench.flag("--json", "print the result as one line of JSON, the last of the output")
    bench.option(
        "--peers",
        "replay: folder with the peers' environments (default: $ROLLMILL_PEERS, or the checkout)",
        kind=Path,
        metavar="DIR",
    )
    bench.flag("--install-peers", "replay: install the peers that are not there")
    _add_import(bench)

    verify = Command(
        "verify",
        _USAGE["verify"],
        "Train twice, with other workers, with delays and resumed half way, and compare every update bit for bit.\n\n"
        "In lockstep the two must be equal; where they are not, the first difference is named. Exit code 1 then.",
    )
    verify.parser.add_argument("preset", metavar="PRESET", help="what to train (`rollmill envs` lists all presets)")
    verify.option("--updates", "updates to compare (default 5)", kind=count, default=5, metavar="N")
    verify.option("--delay", "longest delay of the second run (default 0.05)", kind=seconds, metavar="SECONDS")
    verify.option("--algo", "ppo or impala, instead of the preset's APPO", metavar="NAME")
    verify.flag("--json", "print the result as one line of JSON, the last of the output")
    _add_import(verify)

    report = Command(
        "report",
        _USAGE["report"],
        "Compare runs: learning curves, scores, and over Atari games human-normalised aggregates with intervals.\n\n"
        "Runs are grouped by the settings that they differ in; NAME=RUN_DIR names the method instead.",
    )
    report.parser.add_argument("runs", metavar="RUN", nargs="+", help="directory of a run, or NAME=RUN_DIR")
    report.option(
        "--output",
        "directory of the page and its pictures (default report)",
        kind=Path,
        default="report",
        metavar="DIR",
    )
    report.option("--title", "the page's title (default: the environments)", default="", metavar="TEXT")
    report.flag("--json", "print the figures as one line of JSON, the last of the output")

    envs = Command("envs", _USAGE["envs"], "List the presets.")
    envs.parser.add_argument("family", metavar="FAMILY", nargs="?", help="only those of one family, e.g. vizdoom")
    _add_import(envs)

    given = (train, tune, evaluate, watch, plot, report, verify, bench, envs)
    commands = {command.parser.prog.split()[-1]: command for command in given}
    parser = argparse.ArgumentParser(
        prog="rollmill",
        usage="rollmill COMMAND ...",
        description="Reinforcement learning as fast as machines can simulate: at full speed, or reproducibly.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="commands:\n"
        + "\n".join(f"  {name:<7}{command.summary.splitlines()[0]}" for name, command in commands.items())
        + "\n\nrollmill COMMAND --help says more. To begin: rollmill train gym/CartPole-v1",
    )
    parser.add_argument("--version", action="version", version=f"rollmill {rollmill.__version__}")
    return parser, commands


def _add_run_dir(command: Command) -> None:
    command.parser.add_argument("run_dir", metavar="RUN_DIR", type=Path, help="directory of a run")


def _add_import(command: Command) -> None:
    command.option(
        "--import",
        "import a module, or a .py file, that registers environments, models or algorithms; may be given several times",
        metavar="MODULE",
        repeatable=True,
        dest="modules",
    )


def _add_playing(command: Command) -> None:
    command.option("--checkpoint", "latest (default), best, or the path of one", default="latest", metavar="WHICH")
    command.option("--device", "where the network runs (default cpu)", default="cpu", metavar="DEVICE")
    command.flag("--deterministic", "take the most probable action (on-policy algorithms sample by default)")
    command.flag("--explore", "sample, or explore as in training (off-policy algorithms do not by default)")
    _add_import(command)
