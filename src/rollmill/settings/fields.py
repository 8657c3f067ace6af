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
        remark: Ends the message about another value, after what is allowed: a unit, such as ``"(seconds)"``, or the
            meaning of None.
        key: Its key, wherever it is; None is its name in its class's section.
    """
    return _field(default, rule=rule, remark=remark, key=key)


def tag(value: str, rule: Rule | None = None, *, key: str | None = None) -> Any:
    """The field of a union's member whose key chooses the member; ``rule`` and ``key`` as in :func:`setting`."""
    return _field(value, rule=rule, key=key, is_tag=True)


def _field(default: Any, **metadata: object) -> Any:
    return dataclasses.field(default=default, metadata={k: v for k, v in metadata.items() if v is not None})
