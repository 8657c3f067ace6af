"""What the processes of a campaign's runs need to know of the program that started it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rollmill.api import make_config
from rollmill.campaigns.jobs import CampaignError
from rollmill.regimes.user_code import names_definitions
from rollmill.runtime.shipping import is_main_importable
from rollmill.settings.options import full_keys
from rollmill.settings.run_config import imports_of, own_script


def with_own_code(
    preset: str | Callable[..., Any] | Sequence[str | Callable[..., Any]],
    overrides: Mapping[str, object],
    *,
    algo: str | None,
    protocol: str | None,
) -> dict[str, object]:
    """The settings, with the user's script among the modules to import where it has registered what they name.

    Args:
        preset: As for :func:`rollmill.train`.
        overrides: Settings.
        algo: As in :func:`rollmill.train`.
        protocol: Likewise.

    Raises:
        CampaignError: It is defined in a notebook or at a prompt, which other processes cannot import.
        ValueError: Invalid settings.
    """
    found = dict(overrides)
    config = make_config(preset, overrides, algo=algo, protocol=protocol)
    if (imports := imports_of(config)) != config.env.imports:
        return {**full_keys(config, found), "env.imports": imports}
    if imports or own_script() is not None:
        return found
    is_of_main = getattr(preset, "__module__", "__main__") == "__main__"
    if not is_main_importable() and is_of_main and names_definitions(config):
        raise CampaignError(
            f"{config.env.name} or something else that the settings name is defined in a notebook or at a prompt, and "
            "each run of a campaign is a program of its own: move it to a module, and name that in env.imports, or an "
            "environment as 'module:Class'."
        )
    return found
