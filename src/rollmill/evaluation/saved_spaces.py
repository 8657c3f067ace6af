"""``spaces.json``: the spaces of a run's environment, so that its agent can act without the environment's code."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollmill.envs.space_data import SavedSpaces, decode_spaces
from rollmill.storage.whole_files import write_whole

SPACES_FILE = "spaces.json"


class SavedSpacesError(ValueError):
    """``spaces.json`` does not hold the spaces of a run."""


def write_spaces(run_dir: Path, data: Mapping[str, Any]) -> None:
    """Write spaces into a run's directory.

    Args:
        run_dir: The directory.
        data: Result of :func:`rollmill.envs.space_data.encode_spaces`.

    Raises:
        OSError: Writing failed.
    """
    content = json.dumps(dict(data), allow_nan=False).encode()
    write_whole(run_dir / SPACES_FILE, content, run_dir / f".writing-spaces-{os.getpid()}")


def read_spaces(run_dir: Path) -> SavedSpaces | None:
    """Read the spaces of a run; None if it has none, as in runs of older versions.

    Raises:
        SavedSpacesError: The file is damaged, or from a newer version.
    """
    path = run_dir / SPACES_FILE
    try:
        return decode_spaces(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise SavedSpacesError(
            f"{path} does not hold the spaces of a run ({error}): restore it, or remove it to read the "
            "spaces from a new environment"
        ) from error
