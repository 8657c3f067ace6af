"""Runs all checks, and words their findings."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from rollmill.doctor import folders, machine, rendering, software
from rollmill.doctor.finding import Finding

_WIDTH = 118

CHECKS: Final[tuple[Callable[[], Finding | Iterable[Finding]], ...]] = (
    software.check_python,
    software.check_rollmill,
    software.check_dependencies,
    machine.check_cores,
    machine.check_memory,
    machine.check_shared_memory,
    machine.check_dev_shm,
    machine.check_open_files,
    machine.check_bf16,
    machine.check_threads,
    machine.check_gpu,
    rendering.check_display,
    rendering.check_egl,
    rendering.check_ffmpeg,
    rendering.check_sound,
    folders.check_working_folder,
    folders.check_cache,
    folders.check_key,
    software.check_extras,
)


def examine(checks: Sequence[Callable[[], Finding | Iterable[Finding]]] = CHECKS) -> list[Finding]:
    """Run checks. One that fails itself becomes a warning, so that the others are still reported.

    Args:
        checks: What to run, in this order.
    """
    findings: list[Finding] = []
    for check in checks:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = check()
                findings += [found] if isinstance(found, Finding) else found
        except Exception as error:
            name = check.__name__.removeprefix("check_").replace("_", " ")
            findings.append(Finding(name, "warning", f"could not be checked ({type(error).__name__}: {error})"))
    return findings


def describe(findings: Sequence[Finding]) -> str:
    """The findings as a table, with advice below each, and a last line with their number.

    Args:
        findings: At least one.
    """
    wide = max(len(finding.check) for finding in findings)
    indent = " " * (len("problem") + 2 + wide + 2)
    lines = []
    for check, state, found, advice in findings:
        head = f"{state:<7}  {check:<{wide}}  "
        lines += textwrap.wrap(head + found, _WIDTH, subsequent_indent=indent, break_long_words=False)
        if advice:
            lines += textwrap.wrap(f"{indent}-> {advice}", _WIDTH, subsequent_indent=indent + "   ")
    counts = {state: sum(finding.state == state for finding in findings) for state in ("problem", "warning")}
    if counts["problem"]:
        lines += ["", f"{counts['problem']} problem(s) and {counts['warning']} warning(s): runs cannot train"]
    else:
        lines += ["", f"no problems, {counts['warning']} warning(s): runs can train"]
    return "\n".join(lines)
