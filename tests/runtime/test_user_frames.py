"""A child's exception is shown from the user's own code on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rollmill.envs.errors import EnvironmentFailure
from rollmill.envs.user_code import import_if_there
from rollmill.models.config import ModelConfig
from rollmill.models.registry import make_model
from rollmill.runtime.user_frames import format_error, is_of_user_code
from rollmill.settings.option_values import coerce
from rollmill.specs import ActionSpec, ArraySpec, CategoricalHead


def users_callback(value: Any) -> Any:
    return torch.zeros(2, 3) @ torch.zeros(value, 5)


def caught(call: Any) -> BaseException:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def leave_out_this_file(error: BaseException) -> None:
    """Drops the frames of `caught` and of what it calls, so that those of Rollmill are left."""
    first = error.__traceback__
    assert first is not None
    assert first.tb_next is not None
    error.__traceback__ = first.tb_next.tb_next


def test_frames_of_rollmill_above_the_users_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from rollmill.models import registry

    observation, action = (
        {"obs": ArraySpec(shape=(3,), dtype="float32")},
        ActionSpec(heads=(CategoricalHead(n=2),), structure="discrete"),
    )
    monkeypatch.setitem(registry.MODELS.factories, "users", lambda *_: users_callback(4))
    error = caught(lambda: make_model(observation, action, ModelConfig(model="users")))
    # As a child has it: its traceback begins in Rollmill.
    assert error.__traceback__ is not None
    leave_out_this_file(error)
    text = format_error(error)
    assert "registry.py" not in text
    assert text.startswith("Traceback (most recent call last)")
    assert "users_callback" in text
    assert text.rstrip().splitlines()[-1].startswith("RuntimeError: mat1 and mat2 shapes")


def test_without_user_code_the_whole_traceback_is_shown() -> None:
    error = caught(lambda: coerce(1, list, "key"))  # A mistake of ours.
    leave_out_this_file(error)
    assert "option_values.py" in format_error(error)


def test_of_our_own_errors_the_message_is_all() -> None:
    action = ActionSpec(heads=(CategoricalHead(n=2),), structure="discrete")
    error = caught(lambda: make_model({}, action, ModelConfig(model="none")))
    leave_out_this_file(error)
    assert format_error(error) == ""


def test_of_an_exception_that_was_raised_from_the_users_the_latter_begins_with_the_users_frame() -> None:
    def wrapped() -> None:
        try:
            users_callback(4)
        except RuntimeError as error:
            raise ValueError("ours") from error

    lines = format_error(caught(wrapped)).splitlines()
    assert "in wrapped" in lines[1]
    assert "in users_callback" in "".join(lines)
    assert lines[-1] == "ValueError: ours"


def test_errors_whose_message_says_all_are_shown_without_our_frames() -> None:
    def from_ours(cause: BaseException | None) -> BaseException:
        def call() -> None:
            raise EnvironmentFailure("environment 0 failed") from cause

        error = caught(call)
        error.__traceback__ = None
        return error

    assert format_error(from_ours(None)) == ""
    lines = format_error(from_ours(caught(lambda: users_callback(4)))).splitlines()
    assert "in users_callback" in "".join(lines)
    assert lines[-1] == "rollmill.envs.errors.EnvironmentFailure: environment 0 failed"
    assert lines[-2] == ""


def test_a_syntax_error_of_the_users_is_shown_without_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_on_purpose.py").write_text("def f(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    error = caught(lambda: import_if_there("broken_on_purpose"))
    leave_out_this_file(error)
    assert format_error(error).splitlines()[0].strip().startswith("File")
    assert "user_code.py" not in format_error(error)
    assert is_of_user_code(error)


def test_code_that_cloudpickle_has_sent_is_the_users() -> None:
    cell: dict[str, Any] = {}
    exec(compile("def step():\n    raise ValueError('in a cell')\n", "<dynamic-code>", "exec"), cell)
    assert is_of_user_code(caught(cell["step"]))
