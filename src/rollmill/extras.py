"""Optional packages, and the command that installs them.

Rollmill is on no package index, so ``pip install "rollmill[vizdoom]"`` finds nothing. The command names the packages
themselves, which works in a checkout and beside an installed wheel alike.
"""

from __future__ import annotations

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
    "report": ("rliable", "pandas<3"),
    "minari": ("minari[hdf5]",),
    "hub": ("huggingface_hub",),
    "sweep": ("optuna", "cmaes"),
}


def install_command(extra: str) -> str:
    """``pip install ...`` of the packages that one of Rollmill's extras stands for.

    Args:
        extra: A name in :data:`EXTRAS`.
    """
    words = [f'"{package}"' if set(package) & set("[<>") else package for package in EXTRAS[extra]]
    return " ".join(["pip install", *words])
