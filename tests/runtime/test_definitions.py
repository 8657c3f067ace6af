"""Registries of the user's definitions, and when two definitions are the same one."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rollmill.runtime.definitions import Registry, is_same_definition

Maker = Callable[[], str]


class UnknownThingError(ValueError):
    """No thing has this name."""


def built_in() -> str:
    return "built in"


def own() -> str:
    return "own"


def other() -> str:
    return "other"


@pytest.fixture
def registry() -> Registry[Maker]:
    return Registry(
        "thing", {"usual": built_in}, register="register_thing", reserved=("auto",), error=UnknownThingError
    )


def test_built_in_and_registered_names_are_found(registry: Registry[Maker]) -> None:
    registry.register("mine", own)
    assert registry.find("usual") is built_in
    assert registry.find("mine") is own
    assert registry.names == ("auto", "usual", "mine")
    assert registry.registered() == {"mine": own}
    assert [name in registry for name in ("auto", "usual", "mine", "none")] == [True, True, True, False]
    assert [registry.is_registered(name) for name in ("auto", "usual", "mine", "none")] == [False, False, True, False]


def test_the_same_definition_may_be_registered_again(registry: Registry[Maker]) -> None:
    registry.register("mine", own)
    registry.register("mine", own)
    assert registry.registered() == {"mine": own}


@pytest.mark.parametrize("name", ["auto", "usual", "mine"])
def test_a_name_that_is_taken_is_refused(registry: Registry[Maker], name: str) -> None:
    registry.register("mine", own)
    with pytest.raises(ValueError, match=rf"thing '{name}' exists already; choose a name other than auto, usual, mine"):
        registry.register(name, other)
    assert registry.factories == {"usual": built_in, "mine": own}


def test_what_another_process_sent_does_not_replace_what_is_there(registry: Registry[Maker]) -> None:
    registry.install("usual", other)
    registry.install("mine", own)
    registry.install("mine", other)
    assert registry.factories == {"usual": built_in, "mine": own}


def test_an_unknown_name_is_refused_with_near_ones_and_how_to_register(registry: Registry[Maker]) -> None:
    with pytest.raises(UnknownThingError) as error:
        registry.find("usuall", "model.thing")
    assert str(error.value) == (
        "model.thing='usuall': this thing is not known; did you mean 'usual'? known: auto, usual. Your own: "
        "rollmill.register_thing('usuall', factory) in a module that every process imports (--import)"
    )
    with pytest.raises(UnknownThingError, match=r"^thing 'xyz' is not known; known: auto, usual\. Your own"):
        registry.find("xyz")


def test_reserved_names_have_no_factory(registry: Registry[Maker]) -> None:
    with pytest.raises(UnknownThingError, match="thing 'auto' is not known"):
        registry.find("auto")


def loaded(path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of a file, imported under a name."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def test_a_file_that_is_imported_under_two_names_defines_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.py"
    path.write_text("class Env: pass\ndef make(): pass\ndef other(): pass\nfirst = lambda: 1\nsecond = lambda: 2\n")
    link = tmp_path / "link.py"
    link.symlink_to(path)
    one, two = loaded(path, "mine_for_test", monkeypatch), loaded(link, "mine_again_for_test", monkeypatch)
    for name in ("Env", "make", "first"):
        assert getattr(one, name) is not getattr(two, name)
        assert is_same_definition(getattr(one, name), getattr(two, name))
    assert not is_same_definition(one.make, two.other)
    assert not is_same_definition(one.first, two.second), "functions without a name are told apart by their lines"
    copy = tmp_path / "copy.py"
    copy.write_text(path.read_text())
    assert not is_same_definition(one.Env, loaded(copy, "copy_for_test", monkeypatch).Env)


def test_objects_without_a_name_are_the_same_only_if_they_are_one() -> None:
    first: Any = [1]
    assert is_same_definition(first, first)
    assert not is_same_definition(first, [1])


def test_at_a_prompt_a_later_definition_of_a_name_replaces_the_earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", prompt)
    exec("def make(): return 1", prompt.__dict__)
    before = prompt.__dict__["make"]
    exec("\n\ndef make(): return 2\ndef other(): return 2", prompt.__dict__)
    assert is_same_definition(before, prompt.__dict__["make"])
    assert not is_same_definition(before, prompt.__dict__["other"])
