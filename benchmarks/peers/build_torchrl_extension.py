"""Compiles torchrl's C++ (its trees of priorities) for the installed version of torch.

torchrl's wheels are compiled for one version of torch each and do not load with another; they carry their sources, so
that no other file is needed. Nothing is done if the extension loads. Flags are those of torchrl's own build,
and ``-march=native``, which can only help it.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import sysconfig
from pathlib import Path

import torch
from torch.utils.cpp_extension import include_paths


def _loads() -> bool:
    check = [sys.executable, "-c", "import torch, torchrl._torchrl"]
    return subprocess.run(check, capture_output=True).returncode == 0


def main() -> None:
    if _loads():
        return
    spec = importlib.util.find_spec("torchrl")
    if spec is None or spec.origin is None:
        sys.exit("torchrl is not installed")
    package = Path(spec.origin).parent
    output = package / f"_torchrl{sysconfig.get_config_var('EXT_SUFFIX')}"
    library = Path(torch.__file__).parent / "lib"
    command = [
        "g++",
        "-O3",
        "-DNDEBUG",
        "-march=native",
        "-std=c++20",
        "-fPIC",
        "-shared",
        "-DTORCH_EXTENSION_NAME=_torchrl",
    ]
    command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    command += [f"-I{path}" for path in (*include_paths(), sysconfig.get_path("include"))]
    command += [str(package / "csrc" / name) for name in ("pybind.cpp", "utils.cpp")]
    command += [f"-L{library}", f"-Wl,-rpath,{library}", "-ltorch_python", "-ltorch", "-ltorch_cpu", "-lc10"]
    new = output.with_suffix(".new")
    subprocess.run([*command, "-o", str(new)], check=True)
    new.replace(output)
    if not _loads():
        sys.exit("torchrl's C++ compiles, but does not load")


if __name__ == "__main__":
    main()
