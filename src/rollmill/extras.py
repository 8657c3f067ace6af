"""Optional packages, and the command that installs them.

Rollmill is on no package index, so ``pip install "rollmill[vizdoom]"`` finds nothing. The command names the packages
themselves, which works in a checkout and beside an installed wheel alike.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

# As in pyproject.toml, without lower bounds; a test compares the two.
EXTRAS: Final = {
    "atari": ("ale-py",),
    "vizdoom": ("vizdoom", "opencv-python-headless"),
    "envpool": ("envpool",),
    "mujoco": ("gymnasium[mujoco]", "mujoco"),
    "classic-control": ("gymnasium[classic-control]",),
    "box2d": ("gymnasium[box2d]",),
    "minigrid": ("minigrid",),
    "pettingzoo": ("pettingzoo", "mpe2", "pymunk"),
    "ratings": ("openskill",),
    "plots": ("matplotlib",),
    "report": ("matplotlib", "rliable", "pandas<3"),
    "tensorboard": ("tensorboard",),
    "video": ("imageio-ffmpeg", "pillow"),
    "export": ("onnx", "onnxscript", "safetensors"),
    "minari": ("minari[hdf5]",),
    "hub": ("huggingface_hub",),
    "sweep": ("optuna", "cmaes"),
    "wandb": ("wandb",),
    "mlflow": ("mlflow-skinny",),
    "trackio": ("trackio",),
}

# The modules of each extra: with all of them present, it is installed.
MODULES: Final = {
    "atari": ("ale_py",),
    "vizdoom": ("vizdoom", "cv2"),
    "envpool": ("envpool",),
    "mujoco": ("mujoco",),
    "classic-control": ("pygame",),
    "box2d": ("Box2D", "pygame"),
    "minigrid": ("minigrid",),
    "pettingzoo": ("pettingzoo", "mpe2", "pymunk"),
    "ratings": ("openskill",),
    "plots": ("matplotlib",),
    "report": ("matplotlib", "rliable", "pandas"),
    "tensorboard": ("tensorboard",),
    "video": ("imageio_ffmpeg", "PIL"),
    "export": ("onnx", "onnxscript", "safetensors"),
    "minari": ("minari", "h5py"),
    "hub": ("huggingface_hub",),
    "sweep": ("optuna", "cmaes"),
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
    "trackio": ("trackio",),
}


class MissingPackageError(ImportError):
    """An optional package is not installed; the message says how to install it."""


def install_command(extra: str) -> str:
    """``pip install ...`` of the packages that one of Rollmill's extras stands for.

    Args:
        extra: A name in :data:`EXTRAS`.
    """
    words = [f'"{package}"' if set(package) & set("[<>") else package for package in EXTRAS[extra]]
    return " ".join(["pip install", *words])


def missing_modules(extra: str) -> tuple[str, ...]:
    """Modules of an extra that are not installed. Nothing is imported.

    Args:
        extra: A name in :data:`EXTRAS`.
    """
    return tuple(module for module in MODULES[extra] if not can_import(module))


def can_import(module: str) -> bool:
    """Whether a module or package is installed. A mere folder of this name, without ``__init__.py``, is not one.

    Args:
        module: Of the top level.
    """
    spec = find_spec(module)
    return spec is not None and spec.origin is not None


def check_extra(extra: str, purpose: str) -> None:
    """Check that an extra is installed.

    Args:
        extra: A name in :data:`EXTRAS`.
        purpose: What needs it: the subject of the message, singular.

    Raises:
        MissingPackageError: It is not installed.
    """
    if missing := missing_modules(extra):
        raise MissingPackageError(
            f"{purpose} needs {' and '.join(missing)}, not installed here: {install_command(extra)}"
        )
