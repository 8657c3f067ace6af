"""onnxruntime-web, which runs exported agents in the pages of ``docs/play/``: ``make docs`` fetches it from npm.

As a script it fetches the pinned version into ``build/``. As a hook it adds what was fetched to the site, so that
nothing is loaded from other hosts. Without it the site is complete but for the agents: their pages say what is missing.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

VERSION = "1.30.0"
# Of the package: `npm view onnxruntime-web@VERSION dist.integrity`.
INTEGRITY = "sha512-q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="
# The build for the CPU, without WebGPU, WebNN and WebGL.
FILES = ("ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm")
FOLDER = Path(__file__).resolve().parents[2] / "build" / f"onnxruntime-web-{VERSION}"
SITE_FOLDER = "play/onnxruntime-web"


class FetchError(Exception):
    """The package cannot be fetched; the message says why, and what to do."""


class IntegrityError(Exception):
    """What npm delivered is not the pinned package."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add onnxruntime-web to the site if it was fetched."""
    from mkdocs.structure.files import File

    if FOLDER.is_dir():
        for name in FILES:
            files.append(File.generated(config, f"{SITE_FOLDER}/{name}", abs_src_path=str(FOLDER / name)))
    return files


def fetch(folder: Path = FOLDER) -> None:
    """Fetch the files from npm, unless they are there.

    Args:
        folder: What the files are put into.

    Raises:
        FetchError: npm is missing or fails.
        IntegrityError: The package is another one than the pinned one.
    """
    if folder.is_dir():
        return
    if (npm := shutil.which("npm")) is None:
        raise FetchError("npm is not installed: install Node.js (https://nodejs.org, or `apt install npm`)")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        command = [npm, "pack", "--silent", "--pack-destination", temporary, f"onnxruntime-web@{VERSION}"]
        packed = subprocess.run(command, capture_output=True, text=True)
        packages = list(Path(temporary).glob("*.tgz"))
        if packed.returncode or len(packages) != 1:
            output = (packed.stderr or packed.stdout).strip()
            raise FetchError(f"npm cannot fetch onnxruntime-web {VERSION}, check the network: {output}")
        check_integrity(packages[0], INTEGRITY)
        unpacked = Path(temporary) / "unpacked"
        unpack(packages[0], unpacked)
        unpacked.rename(folder)


def check_integrity(package: Path, integrity: str) -> None:
    """Compare a package with npm's hash of it.

    Raises:
        IntegrityError: It is another package.
    """
    digest = base64.b64encode(hashlib.sha512(package.read_bytes()).digest()).decode()
    if integrity != f"sha512-{digest}":
        raise IntegrityError(
            f"{package.name} has the hash sha512-{digest}, expected {integrity}: check which registry npm uses"
        )


def unpack(package: Path, folder: Path) -> None:
    """Write the files that the pages need into a folder."""
    folder.mkdir()
    with tarfile.open(package) as archive:
        for name in FILES:
            file = archive.extractfile(f"package/dist/{name}")
            assert file is not None
            (folder / name).write_bytes(file.read())


if __name__ == "__main__":
    try:
        fetch()
    except FetchError as error:
        print(f"make docs: {error}\nThe site is built without onnxruntime-web, so docs/play/ cannot run its agents.")
    except IntegrityError as error:
        sys.exit(f"make docs: {error}")
