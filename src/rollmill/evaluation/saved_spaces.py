"""``spaces.json``: the spaces of a run's environment, so that its agent acts without the environment's code."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollmill.envs.space_data import SavedSpaces, decode_spaces
from rollmill.storage.whole_files import write_whole

__all__ = ["SPACES_FILE", "SavedSpacesError", "read_spaces", "write_spaces"]

SPACES_FILE = "spaces.json"


class SavedSpacesError(ValueError):
    """``spaces.json`` does not hold the spaces of a run."""


def write_spaces(run_dir: Path, data: Mapping[str, Any]) -> None:
    """Puts spaces into a run's directory.

    Args:
        run_dir: The directory.
        data: What :func:`rollmill.envs.space_data.encode_spaces` gave.

    Raises:
        OSError: The disk did not take it.
    """
    content = json.dumps(dict(data), allow_nan=False).encode()
    write_whole(run_dir / SPACES_FILE, content, run_dir / f".writing-spaces-{os.getpid()}")


def read_spaces(run_dir: Path) -> SavedSpaces | None:
    """The spaces of a run; None where it keeps none, as runs of older versions do.

    Raises:
        SavedSpacesError: The file is damaged, or of a newer version.
    """
    path = run_dir / SPACES_FILE
    try:
        return decode_spaces(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise SavedSpacesError(
            f"{path} does not hold the spaces of a run ({error}): restore it, or remove it, and the environment is "
            "built instead to know its spaces"
        ) from error
