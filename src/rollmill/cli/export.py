"""``rollmill export``: write an agent into a file that acts without Rollmill."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rollmill.cli.command import Command
from rollmill.cli.playing import show_warnings
from rollmill.cli.user_modules import import_modules
from rollmill.settings.option_values import OptionError


def make_command() -> Command:
    """The command and its options."""
    command = Command(
        "export",
        "RUN_DIR [OPTIONS]",
        "Write a trained agent into a file that acts without Rollmill.\n\n"
        "  onnx         the whole agent, for onnxruntime and other runtimes (default)\n"
        "  torch        the whole agent, for torch.export.load\n"
        "  safetensors  its weights, with the spaces and the network's settings\n\n"
        "The file takes observations as the environment gives them and returns the environment's actions. The command\n"
        "compares it with the agent on 1,000 random observations, and writes it only if they agree (docs/export.md).",
        run=run,
        examples=(
            "rollmill export runs/first",
            "rollmill export runs/first --checkpoint best --output agent.pt2",
            "rollmill export runs/first --sample --json",
        ),
    )
    command.add_run_dir()
    command.option(
        "--format", "onnx, torch or safetensors (default: by the ending of --output, else onnx)", metavar="FORMAT"
    )
    command.option(
        "--output", "the file (default: RUN_DIR/agent.onnx, .pt2 or .safetensors)", kind=Path, metavar="FILE"
    )
    command.option("--checkpoint", "latest (default), best, or the path of one", default="latest", metavar="WHICH")
    command.option("--policy", "name of the policy, in a run with several", metavar="NAME")
    command.option("--task", "act in this task, of a run that learned several, in its own spaces", metavar="NAME")
    command.flag("--deterministic", "take the best actions (default)")
    command.flag("--sample", "sample actions, by random numbers that are inputs of the file")
    command.add_json()
    command.flag(
        "--trust", "run the code that the run's files name, even if another user wrote them (docs/security.md)"
    )
    command.add_import()
    return command


def run(arguments: argparse.Namespace, overrides: dict[str, object]) -> int:
    """Run the command and return its exit code."""
    if arguments.deterministic and arguments.sample:
        raise OptionError("--deterministic and --sample contradict each other; give one of them, or neither")
    import_modules(arguments, overrides)
    from rollmill.exporting.export import export

    show_warnings()
    result = export(
        arguments.run_dir,
        arguments.output,
        format=arguments.format,
        checkpoint=arguments.checkpoint,
        policy=arguments.policy,
        task=arguments.task,
        sample=arguments.sample,
        trust=arguments.trust,
    )
    print(json.dumps(result.to_dict()) if arguments.json else result.describe())
    return 0
