"""Names, dtypes and shapes of what goes into an exported agent and comes out of it, the same in every format."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

Role = Literal[
    "observation",
    "action_mask",
    "state",
    "reset",
    "uniform",
    "normal",
    "action",
    "next_state",
    "log_prob",
    "value",
]


class Port(NamedTuple):
    """One array that goes in or comes out; its first axis is the batch.

    Attributes:
        name: Its name in the file.
        role: What it is.
        dtype: NumPy's name of its dtype.
        shape: Its shape without the batch axis.
        path: Of an entry of the observation or a component of the action: the keys that lead to it in what the
            environment gives and takes; empty where that is a single array.
    """

    name: str
    role: Role
    dtype: str
    shape: tuple[int, ...] = ()
    path: tuple[str | int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return {**self._asdict(), "shape": list(self.shape), "path": list(self.path)}

    def describe(self) -> str:
        """Return it in one line: ``obs float32 [N, 4]``."""
        return f"{self.name} {self.dtype} [{', '.join(['N', *map(str, self.shape)])}]"


def name_of_entry(entry: str, taken: set[str]) -> str:
    """Return the name of an observation's entry in the file.

    Args:
        entry: The entry, such as ``obs`` or ``camera/front``.
        taken: Names of the other inputs, the other entries and the outputs. An entry of the same name gets the prefix
            ``observation/``, as often as it takes to tell it apart.
    """
    while entry in taken:
        entry = f"observation/{entry}"
    return entry
