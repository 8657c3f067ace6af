"""What `rollmill doctor` prints of this machine, and its exit codes."""

from __future__ import annotations

import json

import pytest

import rollmill.cli.doctor
from rollmill.cli import main
from rollmill.doctor import examination
from rollmill.doctor.finding import Finding, State
from rollmill.extras import EXTRAS


def test_this_machine_can_train(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    findings = [Finding(**finding) for finding in json.loads(capsys.readouterr().out)["findings"]]
    names = [finding.check for finding in findings]
    assert len(names) == len(set(names))
    assert {"Python", "rollmill", "torch", "gymnasium", "numpy", "cores", "memory", "GPU", "display"} <= set(names)
    assert {f"extra {extra}" for extra in EXTRAS} <= set(names)
    assert not [finding for finding in findings if "could not be checked" in finding.found]


@pytest.mark.parametrize(("state", "code"), [("ok", 0), ("warning", 0), ("problem", 1)])
def test_only_a_problem_fails(
    state: State, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finding = Finding("cores", state, "some", "have more")
    monkeypatch.setattr(examination.examine, "__defaults__", ((lambda: finding,),))
    assert main(["doctor"]) == code
    assert f"{state:<7}  cores  some\n                -> have more\n" in capsys.readouterr().out


def test_help_says_what_is_checked() -> None:
    text = rollmill.cli.doctor.make_command().parser.format_help()
    for word in ("shared memory", "open files", "bf16", "GPU", "--json", "Exits with 1"):
        assert word in text
