"""The text of ``env.wrappers``."""

from __future__ import annotations

import pytest

from rollmill.envs.wrapper_calls import WrapperCall, parse_wrappers
from rollmill.settings.value_checks import ConfigError


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("", ()),
        ("  ", ()),
        ("TimeAwareObservation", (WrapperCall("TimeAwareObservation"),)),
        ("ClipReward(-1, 1)", (WrapperCall("ClipReward", (-1, 1)),)),
        (
            "A(shape=(84, 84)), my_module.inner.B(x=[1, {'y': None}], z='t')",
            (
                WrapperCall("A", (), {"shape": (84, 84)}),
                WrapperCall("my_module.inner.B", (), {"x": [1, {"y": None}], "z": "t"}),
            ),
        ),
    ],
)
def test_names_and_literal_arguments(text: str, calls: tuple[WrapperCall, ...]) -> None:
    assert parse_wrappers(text) == calls


@pytest.mark.parametrize(
    "text",
    [
        "A(",
        "A B",
        "A; import os",
        "A(open('/etc/passwd'))",
        "A(**{'x': 1})",
        "A(*(1, 2))",
        "A(lambda x: x)",
        "A()()",
        "f().B",
        "3",
        "'A'",
        "A),(B",
        "A(x={[]: 1})",
        "A(x=1, x=2)",
        "A(x=" + "-" * 100_000 + "1)",
        "\0",
    ],
)
def test_anything_else_is_refused_and_not_executed(text: str) -> None:
    with pytest.raises(ConfigError, match=r"env\.wrappers"):
        parse_wrappers(text)
