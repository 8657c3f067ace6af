"""What the processes of a campaign's runs need to know of the program that started it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from rollmill.campaigns.jobs import CampaignError
from rollmill.envs.registry import find_registration, register_factory
from rollmill.settings.run_config import own_script


def name_of(preset: str | Callable[..., Any]) -> str:
    """Return the name of what to train, after registering the user's class or function."""
    return preset if isinstance(preset, str) else register_factory(preset)


def with_own_code(preset: str | Callable[..., Any], overrides: Mapping[str, object]) -> dict[str, object]:
    """The settings, with the user's script among the modules to import where it may define what is trained.

    Args:
        preset: A name, class or function.
        overrides: Settings.

    Raises:
        CampaignError: It is defined in a notebook or at a prompt, which other processes cannot import.
    """
    found = dict(overrides)
    is_own = not isinstance(preset, str) or find_registration(preset) is not None
    script = own_script()
    if is_own and script is not None and "env.imports" not in found:
        found["env.imports"] = (script,)
    module = getattr(preset, "__module__", None)
    has_file = getattr(sys.modules["__main__"], "__file__", None) is not None
    if not isinstance(preset, str) and module == "__main__" and not has_file:
        raise CampaignError(
            f"{preset!r} is defined in a notebook or at a prompt, and each run of a campaign is a program of its own: "
            "move it to a module, and give it as 'module:Class'."
        )
    return found
