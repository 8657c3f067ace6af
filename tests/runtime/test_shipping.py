"""The user's definitions as bytes for other processes: by reference where they can import them, else by value."""

from __future__ import annotations

import functools
import pickle
import subprocess
import sys
import threading
from multiprocessing import get_context
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rollmill.runtime.shipping import (
    Definition,
    SealedDefinition,
    UnsendableError,
    is_main_importable,
    require_sendable,
)


def importable() -> int:
    return 1


class LoadsNowhere:
    """Raises when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("not a number",)


def sent(value: object, *, is_needed: bool = True) -> SealedDefinition:
    """What arrives of a definition in another process."""
    definition = Definition("environment", "mine", value, is_needed=is_needed)
    if not is_needed:
        definition.seal_unused()
    sealed = pickle.loads(ForkingPickler.dumps(definition))
    assert isinstance(sealed, SealedDefinition)
    assert (sealed.kind, sealed.name, sealed.is_needed) == ("environment", "mine", is_needed)
    return sealed


def test_what_a_module_defines_travels_by_reference() -> None:
    assert sent(importable).open() is importable
    assert sent(functools.partial(importable)).open().func is importable


def test_what_no_process_can_import_travels_by_value_with_what_it_uses() -> None:
    offset = 3

    class Local:
        def value(self) -> int:
            return offset + 4

    found = sent(Local).open()
    assert found().value() == 7
    assert sent(lambda x: x + offset).open()(1) == 4


def test_what_only_exists_here_is_refused_with_the_reason() -> None:
    lock = threading.Lock()
    with pytest.raises(UnsendableError) as error:
        sent(lock)
    text = str(error.value)
    assert text.startswith("the environment 'mine' cannot be sent to the processes of the run (TypeError: ")
    assert "_thread.lock" in text
    with pytest.raises(UnsendableError, match="the callback 'yours' cannot be sent"):
        require_sendable("callback", "yours", lock)


@pytest.mark.parametrize("is_prompt", [False, True])
def test_the_advice_depends_on_whether_processes_can_import_the_main_module(
    is_prompt: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = ModuleType("__main__")
    main.__file__ = None if is_prompt else __file__
    monkeypatch.setitem(sys.modules, "__main__", main)
    advice = "remove from it what only exists here" if is_prompt else "define it at the top level of a module or script"
    with pytest.raises(UnsendableError, match=rf": {advice}"):
        require_sendable("environment", "mine", threading.Lock())


def test_what_a_run_does_not_use_never_ends_it() -> None:
    assert sent(threading.Lock(), is_needed=False).open() is None
    assert sent(LoadsNowhere(), is_needed=False).open() is None
    assert sent(importable, is_needed=False).open() is importable
    large = bytes(70_000_000)
    assert sent(large, is_needed=False).open() is None
    assert sent(large).open() == large


def test_what_cannot_be_loaded_raises_where_it_is_used() -> None:
    sealed = sent(LoadsNowhere())
    with pytest.raises(ValueError, match="not a number"):
        sealed.open()


def test_locks_and_queues_of_multiprocessing_may_be_sent_while_a_process_is_started() -> None:
    context = get_context("spawn")
    for value in (context.Lock(), context.Value("i", 3), importable, LoadsNowhere()):
        require_sendable("environment", "mine", value)


def test_a_main_module_is_importable_if_it_is_a_file_or_has_a_specification() -> None:
    script, notebook, package = ModuleType("__main__"), ModuleType("__main__"), ModuleType("__main__")
    script.__file__ = __file__
    notebook.__file__ = "<ipython-input-1>"
    package.__spec__ = pytest.__spec__
    assert [is_main_importable(main) for main in (script, notebook, package, ModuleType("__main__"))] == [
        True,
        False,
        True,
        False,
    ]


_SCRIPT = """
import pickle, sys
from rollmill.runtime.shipping import Definition

def of_the_script(): pass
class Outer:
    class Inner: pass

def replaced(): pass
earlier = replaced
def replaced(): return 2

def is_by_reference(value):
    sealed = pickle.loads(pickle.dumps(Definition("thing", "x", value, is_needed=True)))
    return b"cloudpickle" not in sealed._data

exec(compile("def typed(): pass", "<stdin>", "exec"))
print(*[is_by_reference(value) for value in (of_the_script, Outer, Outer.Inner, replaced, earlier, typed)])
"""


def test_of_the_main_module_only_what_its_file_defines_travels_by_reference(tmp_path: Path) -> None:
    """A prompt after a script (``python -i``) defines more in its name, which no process finds in the file."""
    path = tmp_path / "script.py"
    path.write_text(_SCRIPT)
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "True", "True", "False", "False"]
    at_a_prompt = subprocess.run([sys.executable], input=_SCRIPT, capture_output=True, text=True, check=True)
    assert at_a_prompt.stdout.split() == ["False"] * 6
