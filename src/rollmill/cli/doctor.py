"""``rollmill doctor``: check the installation and the machine."""

from __future__ import annotations

import argparse
import json

from rollmill.cli.command import EXIT_FAILED, Command


def make_command() -> Command:
    """The command and its options."""
    command = Command(
        "doctor",
        "[OPTIONS]",
        "Check the installation and the machine, and say what to do about problems.\n\n"
        "Checks the versions of Python and packages, extras, cores and memory with the container's limits,\n"
        "shared memory, open files, bf16 units, the GPU, and what windows, videos and sound need.\n"
        "Exits with 1 if a problem keeps runs from training; warnings do not count.",
        run=run,
        examples=("rollmill doctor", "rollmill doctor --json"),
    )
    command.add_json("findings")
    return command


def run(arguments: argparse.Namespace, overrides: dict[str, object]) -> int:
    """Run the command and return its exit code."""
    from rollmill.doctor.examination import describe, examine

    findings = examine()
    if arguments.json:
        print(json.dumps({"findings": [finding._asdict() for finding in findings]}))
    else:
        print(describe(findings))
    return EXIT_FAILED if any(finding.state == "problem" for finding in findings) else 0
