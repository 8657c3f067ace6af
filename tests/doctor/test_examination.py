"""All checks together: what is reported, and in which words."""

from __future__ import annotations

from rollmill.doctor.examination import CHECKS, describe, examine
from rollmill.doctor.finding import Finding

FINE = Finding("cores", "ok", "2 of 2 usable")
SLOW = Finding("GPU", "warning", "a driver " + "that PyTorch cannot use " * 8, "update the driver")
BROKEN = Finding("memory", "problem", "1.0 MiB available", "end other programs")


def check_nothing() -> Finding:
    raise RuntimeError("no idea")


def test_a_check_that_fails_is_a_warning_and_the_others_go_on() -> None:
    found = examine([check_nothing, lambda: FINE, lambda: [SLOW, BROKEN]])
    assert found == [
        Finding("nothing", "warning", "could not be checked (RuntimeError: no idea)"),
        FINE,
        SLOW,
        BROKEN,
    ]


def test_the_table_has_a_line_for_each_finding_and_advice_below() -> None:
    lines = describe([FINE, SLOW, BROKEN]).splitlines()
    assert lines[0] == "ok       cores   2 of 2 usable"
    assert lines[1].startswith("warning  GPU     a driver that")
    assert lines[2].startswith("                 use that PyTorch")
    assert max(map(len, lines)) <= 118
    assert lines[3:] == [
        "                 -> update the driver",
        "problem  memory  1.0 MiB available",
        "                 -> end other programs",
        "",
        "1 problem(s) and 1 warning(s): runs cannot train",
    ]
    assert describe([FINE, SLOW]).endswith("no problems, 1 warning(s): runs can train")


def test_each_check_is_run_once() -> None:
    assert len(set(CHECKS)) == len(CHECKS)
