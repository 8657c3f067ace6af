"""What messages say about optional packages."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from rollmill.extras import EXTRAS, MODULES, MissingPackageError, check_extra, install_command, missing_modules

ROOT = Path(__file__).parents[1]


def test_the_packages_are_those_of_the_projects_extras() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {name: tuple(re.sub(r">=.*", "", package) for package in extras[name]) for name in EXTRAS}
    assert named == EXTRAS
    assert extras.keys() - EXTRAS.keys() == {"all", "bench", "dev", "docs"}


@pytest.mark.parametrize("extra", EXTRAS)
def test_a_shell_passes_each_package_to_pip(extra: str) -> None:
    assert shlex.split(install_command(extra)) == ["pip", "install", *EXTRAS[extra]]


def test_all_brings_every_extra_but_those_of_services() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    brought = {name for group in extras["all"] for name in re.sub(r".*\[|\]", "", group).split(",")}
    assert brought | {"wandb", "mlflow", "trackio"} == EXTRAS.keys() == MODULES.keys()


@pytest.mark.parametrize("extra", MODULES)
def test_the_modules_of_an_extra_are_found_where_it_is_installed_and_missed_elsewhere(
    extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing_modules(extra):
        pytest.skip(f"the extra {extra} is not installed")
    check_extra(extra, "a test")
    last = MODULES[extra][-1]
    monkeypatch.setitem(sys.modules, last, None)  # as if it were not installed
    assert missing_modules(extra) == (last,)
    message = f"a test needs {last}, not installed here: {install_command(extra)}"
    with pytest.raises(MissingPackageError, match=re.escape(message)):
        check_extra(extra, "a test")


@pytest.mark.parametrize("name", ["doom_match", "doom_sound", "vizdoom_env"])
def test_modules_over_vizdoom_name_the_extra(name: str) -> None:
    code = f"import sys; sys.modules['vizdoom'] = None; import rollmill.envs.{name}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "MissingExtra: VizDoom scenarios need vizdoom and OpenCV, and one is not installed" in done.stderr
    assert done.stderr.rstrip().endswith(install_command("vizdoom"))


def test_no_message_names_the_package_itself_which_is_on_no_index() -> None:
    sources = [path for path in (ROOT / "src").rglob("*.py") if path.name != "extras.py"]
    assert [path.name for path in sources if re.search(r"pip install\W+rollmill", path.read_text())] == []
