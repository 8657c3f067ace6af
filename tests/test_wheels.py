"""What `make wheels` builds: it installs without a compiler, imports and trains, and brings nothing it should not.

The packages come from the index that pip is set up with, in the versions of constraints.txt. ROLLMILL_WHEEL_PYTHON
names the Python to train with (by default the one that runs the tests), ROLLMILL_WHEEL_CONSTRAINTS another file of
versions, and ROLLMILL_WHEEL_DIST a folder that `make wheels` has filled, which saves building.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from release.build_wheels import FIRST_WITH_STABLE_ABI, Interpreter, builders, candidates, interpreters

ROOT = Path(__file__).parents[1]

IMPORT_ALL = """
import importlib, json, pkgutil, rollmill
failed = {}
for module in pkgutil.walk_packages(rollmill.__path__, "rollmill."):
    if module.name != "rollmill.__main__":
        try:
            importlib.import_module(module.name)
        except Exception as error:
            failed[module.name] = [type(error).__name__, str(error)]
print(json.dumps(failed))
"""

USE_NATIVE_PART = """
import numpy as np
from rollmill.replay import PrioritizedReplay
from rollmill.ring import Queue

queue = Queue(capacity=16)
queue.put(b"abc")
queue.put(1 << 40)
assert [queue.get(timeout=5), queue.get(timeout=5)] == [b"abc", 1 << 40]

replay = PrioritizedReplay(100, {"obs": ((4,), "float32"), "reward": ((), "float32")})
for t in range(10):
    obs = np.full((1, 4), t, np.float32)
    replay.add(obs=obs, reward=np.ones(1, np.float32), terminated=np.zeros(1, bool), next_obs=obs + 1)
batch = replay.sample(64)
assert (batch["next_obs"] == batch["obs"] + 1).all()
try:
    replay.update_priorities(batch, np.zeros(3, np.float32))
except ValueError:
    print("ok")  # exceptions of C++ become Python's
"""


def environment(python: Path) -> dict[str, str]:
    """Variables of a shell that finds the programs of a virtual environment, and no other ones."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "XDG_", "OPENBLAS_", "LANG"))}
    nowhere = {"CC": "/nonexistent", "CXX": "/nonexistent", "CPATH": "/nonexistent"}
    return {**kept, **nowhere, "HOME": str(python.parents[1]), "PATH": str(python.parent), "OMP_NUM_THREADS": "1"}


def run(python: Path, *command: str | Path, timeout: float = 600) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, *command],
        env=environment(python),
        cwd=python.parents[1],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def checked(python: Path, *command: str | Path, timeout: float = 600) -> str:
    done = run(python, *command, timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that `make wheels` has filled."""
    if given := os.environ.get("ROLLMILL_WHEEL_DIST"):
        return Path(given).resolve()
    folder = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        ["make", "-C", ROOT, "wheels", f"DIST={folder}"], capture_output=True, text=True, timeout=1800, check=False
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return folder


def fresh(python: str, folder: Path) -> Iterator[Path]:
    subprocess.run([python, "-m", "venv", folder], check=True)
    yield folder / "bin" / "python"
    shutil.rmtree(folder)


def wheel_for(python: Path, dist: Path) -> Path:
    """The wheel that pip chooses, which is one for every glibc that the machine may have."""
    into = python.parents[1] / "wheel"
    arguments = ("--no-deps", "--no-index", "--find-links", dist, "--only-binary", ":all:", "--dest", into)
    checked(python, "-m", "pip", "download", *arguments, "rollmill")
    (wheel,) = into.glob("*.whl")
    return wheel


def test_each_python_before_the_stable_abi_builds_a_wheel_and_the_first_with_it() -> None:
    found = [Interpreter(minor, f"python3.{minor}") for minor in (11, 12, 13, 14)]
    assert [each.minor for each in builders(found)] == [11, 12]
    assert [each.minor for each in builders(found[2:])] == [13]
    assert [each.minor for each in builders(found[:1])] == [11]


def test_a_program_that_is_no_python_is_passed_over() -> None:
    (found,) = interpreters(["/bin/false", "no such program", sys.executable, sys.executable])
    assert found == Interpreter(sys.version_info.minor, sys.executable)


@pytest.mark.slow
def test_there_is_an_sdist_and_a_manylinux_wheel_for_each_python(dist: Path) -> None:
    wheels = sorted(path.name for path in dist.glob("*.whl"))
    minors = [each.minor for each in builders(interpreters(candidates()))]
    tags = [f"cp3{minor}-{'abi3' if minor >= FIRST_WITH_STABLE_ABI else f'cp3{minor}'}" for minor in minors]
    assert len(wheels) == len(tags)
    platform = r"(manylinux\w+\.)*manylinux_2_\d+_x86_64(\.manylinux\w+)*"
    for wheel, tag in zip(wheels, tags, strict=True):
        assert re.fullmatch(rf"rollmill-[\d.]+-{tag}-{platform}\.whl", wheel)
        with zipfile.ZipFile(dist / wheel) as archive:
            folders = {name.partition("/")[0] for name in archive.namelist()}
        assert folders == {"rollmill", f"rollmill-{wheel.split('-')[1]}.dist-info"}, (
            "no library is put beside the module"
        )
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE", "cpp/core/lane_ring.h"} <= names
    assert not {name.partition("/")[0] for name in names} & {"tests", "build", "dist", ".venv", "runs", "release"}


@pytest.mark.slow
def test_the_native_part_works_with_each_python(dist: Path, tmp_path: Path) -> None:
    found = interpreters(candidates())
    assert sys.version_info.minor in [each.minor for each in found]
    for python in (python for each in found for python in fresh(each.path, tmp_path / f"3.{each.minor}")):
        checked(python, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", "numpy>=2", "cloudpickle")
        checked(python, "-m", "pip", "install", "--quiet", "--no-deps", wheel_for(python, dist))
        assert checked(python, "-c", USE_NATIVE_PART) == "ok\n"


@pytest.mark.slow
def test_a_fresh_environment_without_a_compiler_trains_cartpole(dist: Path, tmp_path: Path) -> None:
    constraints = os.environ.get("ROLLMILL_WHEEL_CONSTRAINTS", ROOT / "constraints.txt")
    for python in fresh(os.environ.get("ROLLMILL_WHEEL_PYTHON", sys.executable), tmp_path / "env"):
        wheel = wheel_for(python, dist)
        arguments = ("--quiet", "--no-cache-dir", "--only-binary", ":all:", "-c", Path(constraints))
        checked(python, "-m", "pip", "install", *arguments, wheel, timeout=1800)

        doctor = json.loads(checked(python, "-m", "rollmill", "doctor", "--json"))["findings"]
        found = {finding["check"]: finding for finding in doctor}
        assert found["rollmill"]["state"] == "ok"
        assert "pip install tensorboard" in found["extra tensorboard"]["advice"]

        failed = json.loads(checked(python, "-c", IMPORT_ALL))
        assert {name.rpartition(".")[2] for name in failed} == {
            *("dmlab_env", "doom_match", "doom_sound", "doom_start", "vizdoom_env")
        }
        for kind, message in failed.values():
            assert kind == "MissingExtra"
            assert "pip install vizdoom opencv-python-headless" in message or "must be built with Bazel" in message

        rollmill = python.parent / "rollmill"
        settings = ("--target-return", "475", "--run-dir", "run")
        checked(python, rollmill, "train", "gym/CartPole-v1", *settings, timeout=900)
        run_dir = python.parents[1] / "run"
        log = (run_dir / "run.log").read_text()
        assert "end: target reached: mean return of the last 100 episodes" in log
        assert log.count("tensorboard/ is not written (pip install tensorboard)") == 1
        assert log.count("not written here: learning_curve.png (pip install matplotlib)") == 1
        assert json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])["episode_return"] >= 475
        assert not (run_dir / "tensorboard").exists()
        assert not (run_dir / "learning_curve.png").exists()
        evaluation = json.loads(checked(python, rollmill, "eval", run_dir, "--json").splitlines()[-1])
        assert evaluation["mean_return"] > 450

        for command, advice in (
            (("plot", run_dir), "a learning curve needs matplotlib, not installed here: pip install matplotlib"),
            (("eval", run_dir, "--video", "a.mp4"), "pip install imageio-ffmpeg pillow"),
            (("report", run_dir), "a report needs matplotlib, not installed here: pip install matplotlib"),
        ):
            refused = run(python, rollmill, *command)
            assert refused.returncode == 2
            assert advice in refused.stderr
