"""Wraps environments in Gymnasium's wrappers, and in those of the user's (``env.wrappers``)."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Sequence
from typing import Any, cast

import gymnasium

from rollmill.envs.errors import EnvironmentFailure, UnknownEnvironment
from rollmill.envs.user_code import import_user_code
from rollmill.envs.wrapper_calls import EXAMPLE, WrapperCall
from rollmill.settings.value_checks import ConfigError

# Wrappers of Gymnasium that a group of environments must not have, with what to use instead.
_REFUSED = {
    "NormalizeObservation": "its moments would be those of one environment, and evaluations would not have them: use "
    "model.normalise_observations=true, or off-policy a wrapper of your own that divides by known scales",
    "NormalizeReward": "its moments would be those of one environment: use model.normalise_returns=true or "
    "learner.reward_scale",
    "Autoreset": "Rollmill resets environments itself",
    "TimeLimit": "use env.max_episode_steps, so that evaluations know the limit, too",
}


def wrapped(make: Callable[[], Any], calls: Sequence[WrapperCall], name: str) -> Callable[[], Any]:
    """Return a maker of the wrapped environment.

    Args:
        make: Makes the environment.
        calls: The wrappers, the innermost first.
        name: The environment's name, for messages.

    Raises:
        ConfigError: A wrapper does not exist, needs a missing package, or environments must not have it.
    """
    kinds = [_find(call) for call in calls]

    def build() -> Any:
        env = make()
        if not isinstance(env, gymnasium.Env):
            raise UnknownEnvironment(
                f"env.wrappers: {name} has the interface of several agents, which Gymnasium's wrappers do not wrap: "
                "leave env.wrappers out, and wrap it where it is made"
            )
        for kind, call in zip(kinds, calls, strict=True):
            try:
                env = kind(env, *call.args, **call.kwargs)
            except Exception as error:
                hint = f"; arguments of a wrapper are given as {call.name}(NAME=VALUE)"
                raise EnvironmentFailure(
                    f"env.wrappers: {call.name} raised {type(error).__name__} around {name}: {error}"
                    + (hint if isinstance(error, TypeError) else "")
                ) from error
        return env

    return build


def _find(call: WrapperCall) -> Callable[..., Any]:
    if call.is_own:
        module, _, name = call.name.rpartition(".")
        import_user_code(module, option="env.wrappers")
        found = getattr(importlib.import_module(module), name, None)
        known: list[str] = []
    else:
        # Names are loaded on demand, and some of them need packages of their own.
        try:
            found = getattr(gymnasium.wrappers, call.name, None)
        except ImportError as error:
            raise ConfigError(f"env.wrappers: {call.name} needs a package that is missing ({error}).") from error
        known = [name for name in gymnasium.wrappers.__all__ if name[:1].isupper()]
    if not callable(found):
        near = difflib.get_close_matches(call.name, known, n=2, cutoff=0.5)
        hint = f"; did you mean {' or '.join(near)}?" if near else f"; {EXAMPLE}."
        raise ConfigError(f"env.wrappers: there is no wrapper {call.name}{hint}")
    for name, why in _REFUSED.items():
        if found is getattr(gymnasium.wrappers, name):
            raise ConfigError(f"env.wrappers: {call.name} cannot be used: {why}.")
    return cast("Callable[..., Any]", found)
