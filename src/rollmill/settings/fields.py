"""Fields of configuration dataclasses: what :mod:`rollmill.settings.options` and the checks know about each."""

from __future__ import annotations

import dataclasses
from typing import Any

from rollmill.settings.value_checks import Rule


def setting(default: Any, rule: Rule | None = None, remark: str = "", *, key: str | None = None) -> Any:
    """A field of a configuration.

    Args:
        default: Its default value.
        rule: Which values it may have, besides those that its annotation names.
        remark: Ends the message about another value, after what is allowed: ``"(seconds)"``; where None or "auto" is
            allowed, what that means.
        key: Its key, wherever it is; None is its name in its class's section.
    """
    metadata: dict[str, object] = {"remark": remark}
    if rule is not None:
        metadata["rule"] = rule
    if key is not None:
        metadata["key"] = key
    return dataclasses.field(default=default, metadata=metadata)


def tag(value: str, rule: Rule | None = None, *, key: str | None = None) -> Any:
    """The field of a union's member whose key chooses the member; ``rule`` and ``key`` as in :func:`setting`."""
    metadata: dict[str, object] = {"is_tag": True}
    if rule is not None:
        metadata["rule"] = rule
    if key is not None:
        metadata["key"] = key
    return dataclasses.field(default=value, metadata=metadata)
