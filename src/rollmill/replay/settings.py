"""A replay's settings: checked, stored with the data, and passed to the native ring."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal, TypedDict, get_args

import numpy as np

from rollmill.native import FANOUTS, RingShape
from rollmill.replay.fields import Field, FieldSpecs, fields_of

WeightNormalisation = Literal["batch", "global", "none"]

# Given for every step, whatever the fields.
FLAGS = ("terminated", "truncated", "valid")

_MOST_N_STEP = 1024
_NUMBERS = (int, float, np.integer, np.floating)

# Parts of the geometry that only the tree has, which is rebuilt where a copy is read.
_OF_THE_TREE = ("fanout", "minimum")


class Geometry(TypedDict):
    """What the bytes of a replay depend on: arguments of :class:`rollmill.native.RingShape`."""

    capacity: int
    fields: list[tuple[str, list[int], bool]]
    linked: bool
    reward: int
    n_step: int
    discount: float
    fanout: int
    minimum: bool


@dataclass(frozen=True, kw_only=True)
class Settings:
    """As given to :class:`rollmill.replay.PrioritizedReplay`, which documents them.

    Attributes:
        specs: The fields as they were given, flattened.
        next_of: Names of fields of which batches have the next one too.

    Raises:
        ValueError: One is out of range, or does not fit the others.
    """

    capacity: int
    specs: FieldSpecs
    num_envs: int
    n_step: int
    discount: float
    alpha: float
    beta: float
    epsilon: float
    weights: WeightNormalisation
    max_priority_decay: float
    stratified: bool
    uniform: bool
    next_of: Sequence[str]
    fanout: int
    seed: int

    def __post_init__(self) -> None:
        self._take_whole("capacity", 1, 2**40)
        self._take_whole("num_envs", 1, 2**24)
        self._take_whole("n_step", 1, _MOST_N_STEP)
        self._take_whole("seed", 0, 2**64 - 1)
        self._take_number("discount", 0.0, 1.0)
        self._take_number("alpha", 0.0, 4.0)
        self._take_number("beta", 0.0, math.inf)
        self._take_number("epsilon", 1e-12, math.inf, ": with 0, what is learned well is never drawn again")
        self._take_number("max_priority_decay", 1e-6, 1.0)
        self._take_flag("stratified")
        self._take_flag("uniform")
        self._check_least_priority()
        if self.fanout not in FANOUTS:
            raise ValueError(f"fanout is {self.fanout!r}; choose one of {', '.join(map(str, FANOUTS))}")
        self._take_whole("fanout", 2, 256)
        if self.weights not in get_args(WeightNormalisation):
            raise ValueError(f"weights is {self.weights!r}; choose 'batch', 'global' or 'none'")
        self._check_fields()

    def _check_least_priority(self) -> None:
        # Between the tree's limits: float32's least normal number and 2^64.
        if not self.uniform and not -126 <= self.alpha * math.log2(self.epsilon) <= 64:
            raise ValueError(
                f"epsilon is {self.epsilon!r} and alpha {self.alpha!r}; epsilon ** alpha, the priority of an error of "
                "0, must be about 1e-38 to 1e19: give another epsilon, or a smaller alpha"
            )

    def _check_fields(self) -> None:
        all_fields = fields_of(self.specs)
        names = [field.name for field in all_fields]
        for name in self.next_of:
            if name not in names or name in ("reward", *FLAGS):
                raise ValueError(f"next_of names {name!r}; it may name observations among the fields: {names}")
            if f"next_{name}" in names:
                raise ValueError(
                    f"next_of names {name!r} and there is a field 'next_{name}', too. For steps in order leave the "
                    "field out, it is made from the next step; for independent transitions give next_of=()"
                )
        if not self.is_linked:
            if self.num_envs != 1:
                raise ValueError(
                    f"num_envs is {self.num_envs} for independent transitions, of which add takes any number; "
                    "leave it 1"
                )
            return
        if ("reward", (), "float32") not in [(field.name, field.shape, str(field.dtype)) for field in all_fields]:
            raise ValueError(
                "steps in order need a field 'reward': ((), 'float32'), in which n_step rewards are added up"
            )
        if "discount" in names:
            raise ValueError(
                "a field is called 'discount', which batches of steps have of their own; name it otherwise"
            )
        for name in names:
            if self.n_step > 1 and (of := name.removeprefix("next_")) != name and of in names:
                raise ValueError(
                    f"field {name!r} is of one step later, and with n_step={self.n_step} batches need {of!r} of "
                    f"{self.n_step} steps later: leave the field out and name {of!r} in next_of, or give n_step=1"
                )
        for name in ("truncated", "valid"):
            if name in names:
                raise ValueError(
                    f"field {name!r} of steps in order: every step says it anyway, and batches do not have it, because "
                    "'discount' does; leave the field out"
                )
        for field in all_fields:
            if field.name in FLAGS and (field.shape != () or field.dtype.kind != "b"):
                raise ValueError(f"field {field.name!r} must be ((), 'bool'), or left out: every step says it anyway")
        # Each may take two rows: its own and its episode's last observation.
        least = 2 * self.num_envs * (self.n_step + 1)
        if self.capacity < least:
            raise ValueError(
                f"capacity is {self.capacity}, and n_step={self.n_step} steps of num_envs={self.num_envs} and more "
                f"have to be there at once; give at least {least}"
            )

    # NumPy's numbers become Python's, which JSON can hold.

    def _take_number(self, name: str, least: float, most: float, why: str = "") -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, _NUMBERS) or not least <= value <= most:
            raise ValueError(f"{name} is {value!r}; it must be {least:g} to {most:g}{why}")
        if not math.isfinite(value):
            raise ValueError(f"{name} is {value!r}; it must be finite")
        object.__setattr__(self, name, float(value))

    def _take_whole(self, name: str, least: int, most: int) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not least <= value <= most:
            raise ValueError(f"{name} is {value!r}; it must be a whole number from {least} to {most}")
        object.__setattr__(self, name, int(value))

    def _take_flag(self, name: str) -> None:
        value = getattr(self, name)
        if not isinstance(value, (bool, np.bool_)):
            raise ValueError(f"{name} is {value!r}; it must be True or False")
        object.__setattr__(self, name, bool(value))

    @property
    def is_linked(self) -> bool:
        """Whether transitions are steps in order."""
        return bool(self.next_of) or self.n_step > 1

    @property
    def fields(self) -> tuple[Field, ...]:
        """What is stored of a transition, without the flags of steps."""
        return tuple(field for field in fields_of(self.specs) if not (self.is_linked and field.name in FLAGS))

    def geometry(self) -> Geometry:
        """What the bytes of the replay depend on."""
        fields = self.fields
        return Geometry(
            capacity=self.capacity,
            fields=[(field.buffer_format, list(field.shape), field.name in self.next_of) for field in fields],
            linked=self.is_linked,
            reward=[field.name for field in fields].index("reward") if self.is_linked else -1,
            n_step=self.n_step,
            discount=float(self.discount),
            fanout=self.fanout,
            minimum=self.weights == "global" and not self.uniform,
        )

    def shape(self) -> RingShape:
        """The geometry, for the native ring."""
        return RingShape(**self.geometry())

    def to_json(self) -> str:
        """For a file; :meth:`from_json` reads it."""
        specs = {field.name: [list(field.shape), field.dtype.str] for field in fields_of(self.specs)}
        return json.dumps(asdict(self) | {"specs": specs, "next_of": list(self.next_of)})

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """What :meth:`to_json` wrote.

        Raises:
            ValueError: It is something else.
        """
        try:
            content = json.loads(text)
            return cls(**content | {"specs": {name: (tuple(s), d) for name, (s, d) in content["specs"].items()}})
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"the settings of a replay cannot be read ({error})") from error

    def describe_difference(self, other: Settings) -> str:
        """The settings on which a copy depends and in which two replays differ; empty for none."""
        # The names are the dictionaries' own keys, which mypy does not follow through a loop.
        mine, others = self.geometry(), other.geometry()
        names = [name for name in mine if mine[name] != others[name]]  # type: ignore[literal-required]
        names = [name for name in names if name not in _OF_THE_TREE]
        mine_fields, other_fields = self.fields, other.fields
        if [field.name for field in mine_fields] != [field.name for field in other_fields] and "fields" not in names:
            names.append("fields")
        return ", ".join(names)
