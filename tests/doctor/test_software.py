"""Versions and extras, of real packages and of packages that are made for the test."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import rollmill
from rollmill.doctor import software
from rollmill.extras import install_command

ROOT = Path(__file__).parents[2]


def make_package(folder: Path, name: str, code: str, version: str) -> None:
    (folder / f"{name}.py").write_text(code)
    (folder / f"{name}-{version}.dist-info").mkdir()
    (folder / f"{name}-{version}.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")


def test_python_newer_than_the_tests_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    assert software.check_python().state == "ok"
    monkeypatch.setattr(sys, "version_info", (3, 99, 0))
    found = software.check_python()
    assert found.state == "warning"
    assert "tested with Python 3.11 to" in found.advice


def test_rollmill_says_where_it_is_and_whether_its_native_part_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    found = software.check_rollmill()
    assert found.state == "ok"
    assert found.found == f"{rollmill.__version__}, {Path(rollmill.__file__).parent}"
    monkeypatch.setitem(sys.modules, "rollmill.native", None)
    broken = software.check_rollmill()
    assert broken.state == "problem"
    assert "the native module does not load" in broken.found


@pytest.mark.slow
def test_the_command_runs_although_the_native_module_does_not_load(tmp_path: Path) -> None:
    code = "import sys; sys.modules['rollmill.native'] = None; from rollmill.cli import main; main(['doctor'])"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "the native module does not load" in done.stdout
    assert done.stderr == ""


def test_a_broken_numpy_is_a_problem_and_no_traceback(tmp_path: Path) -> None:
    checks = "[software.check_dependencies, machine.check_memory]"
    code = (
        "import sys; sys.modules['numpy'] = None; import rollmill.cli; from rollmill.doctor import machine, software; "
        f"from rollmill.doctor.examination import describe, examine; print(describe(examine({checks})))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "problem  numpy" in done.stdout
    assert "memory" in done.stdout
    assert done.stderr == ""


def test_all_hard_dependencies_are_checked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert [f"{name}>={least}" for name, least in software.DEPENDENCIES.items()] == project["dependencies"]
    found = list(software.check_dependencies())
    assert [finding.check for finding in found] == list(software.DEPENDENCIES)
    assert {finding.state for finding in found} == {"ok"}


def test_a_dependency_is_missing_broken_old_or_new_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    make_package(tmp_path, "doctored_broken", "raise OSError('no libfoo')", "1.0")
    make_package(tmp_path, "doctored_fine", "", "2.10.1+cpu")
    missing = software.check_dependency("doctored_missing", "1.0")
    assert (missing.state, missing.advice) == ("problem", 'pip install "doctored_missing>=1.0"')
    broken = software.check_dependency("doctored_broken", "1.0")
    assert (broken.state, broken.found) == ("problem", "cannot be imported (OSError: no libfoo)")
    assert software.check_dependency("doctored_fine", "2.6").state == "ok"
    old = software.check_dependency("doctored_fine", "2.11")
    assert (old.state, old.found) == ("problem", "2.10.1+cpu, older than 2.11")
    (tmp_path / "doctored_checkout").mkdir()
    (tmp_path / "doctored_checkout/__init__.py").touch()
    unknown = software.check_dependency("doctored_checkout", "2")
    assert (unknown.state, unknown.found) == ("warning", "of unknown version; 2 or newer is needed")


def test_an_extra_is_there_with_its_version_absent_or_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (present,) = software.check_extras(["minigrid"])
    assert present.state == "ok"
    assert present.found.startswith("minigrid 3.")
    monkeypatch.setitem(sys.modules, "minigrid", None)
    (absent,) = software.check_extras(["minigrid"])
    assert (absent.state, absent.found) == ("ok", "not installed (minigrid)")
    assert absent.advice == f"if you need it: {install_command('minigrid')}"
    monkeypatch.delitem(sys.modules, "minigrid")
    (tmp_path / "minigrid.py").write_text("raise ImportError('libGL.so.1: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    (broken,) = software.check_extras(["minigrid"])
    assert broken.state == "warning"
    assert "minigrid cannot be imported (ImportError: libGL.so.1" in broken.found
