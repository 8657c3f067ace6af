"""Checks of an environment's actions against an algorithm's requirements."""

from __future__ import annotations

from rollmill.specs import ActionSpec, BoxHead


class UnfitActionsError(ValueError):
    """An algorithm does not support an environment's actions."""


def require_categorical(algorithm: str, action: ActionSpec) -> None:
    """Check that an action has only categorical heads.

    Raises:
        UnfitActionsError: It has continuous heads.
    """
    if action.num_continuous or not action.num_discrete:
        raise UnfitActionsError(
            f"{algorithm} rates every choice, but the action space is {_describe(action)}; allowed: Discrete, "
            f"MultiDiscrete, MultiBinary. {_instead(action)}"
        )


def require_bounded_box(algorithm: str, action: ActionSpec) -> None:
    """Check that an action has only continuous heads with finite bounds.

    Raises:
        UnfitActionsError: It has categorical heads, or no bounds.
    """
    if action.num_discrete or not action.num_continuous:
        raise UnfitActionsError(
            f"{algorithm} acts in real numbers, but the action space is {_describe(action)}; allowed: a bounded Box. "
            f"{_instead(action)}"
        )
    require_bounds(algorithm, action)


def require_bounds(algorithm: str, action: ActionSpec) -> None:
    """Check that an action's continuous heads, if any, have finite bounds.

    Raises:
        UnfitActionsError: A bound is missing.
    """
    for head in action.heads:
        if isinstance(head, BoxHead) and not head.is_bounded:
            raise UnfitActionsError(
                f"{algorithm} needs finite bounds, whose distance float32 can hold, but the action space is a Box with "
                f"low={head.low}, high={head.high}; wrap the environment in one with bounds "
                "(gymnasium.wrappers.TransformAction(env, lambda a: a, Box(-1, 1, shape)))"
            )


def _describe(action: ActionSpec) -> str:
    heads = [f"Box{head.shape}" if isinstance(head, BoxHead) else f"{head.n} choices" for head in action.heads]
    return f"{action.structure} of {', '.join(heads) or 'nothing'}"


def _instead(action: ActionSpec) -> str:
    if action.num_discrete and action.num_continuous:
        return "Use an on-policy algorithm for choices and numbers together"
    fitting = "dqn or sac for choices" if action.num_discrete else "sac, td3 or ddpg for a Box"
    return f"Use {fitting} (--algo NAME, algo='NAME'), or an on-policy algorithm"
