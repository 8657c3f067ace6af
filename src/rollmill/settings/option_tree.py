"""The tree of a configuration: its fields, the keys of its values, and the members of its tagged unions."""

from __future__ import annotations

import dataclasses
import functools
import operator
import typing
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from rollmill.settings.option_values import OptionError, coerce, format_value, members_of
from rollmill.settings.value_checks import key_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


class Field(NamedTuple):
    """A field of a configuration class.

    Attributes:
        name: Its name.
        key: Its key; of a dataclass or a union, that of the section.
        annotation: What it holds.
        classes: The dataclass, or the members of the union; empty for a value.
        default: Its default value; ``dataclasses.MISSING`` where there is none.
        is_tag: Whether it is the tag of a union's member.
        allowed: What its rule allows, in words; empty without a rule.
    """

    name: str
    key: str
    annotation: object
    classes: tuple[type[DataclassInstance], ...]
    default: Any
    is_tag: bool
    allowed: str


@functools.cache
def fields_of(cls: type[DataclassInstance], prefix: str) -> tuple[Field, ...]:
    """The fields of a configuration class, whose keys begin with the prefix."""
    hints = typing.get_type_hints(cls)
    rows = []
    for field in dataclasses.fields(cls):
        if not field.init:
            continue
        default = field.default
        if default is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        members = members_of(hints[field.name])
        classes = tuple(m for m in members if isinstance(m, type) and dataclasses.is_dataclass(m))
        key = key_of(cls, field.name, prefix)
        rule = field.metadata.get("rule")
        allowed = rule.text if rule is not None else ""
        rows.append(Field(field.name, key, hints[field.name], classes, default, "is_tag" in field.metadata, allowed))
    return tuple(rows)


def tag_of(member: type[DataclassInstance], prefix: str) -> Field:
    """The field that chooses a member of a union."""
    return next(field for field in fields_of(member, prefix) if field.is_tag)


def chosen_member(field: Field, values: Mapping[str, object]) -> type[DataclassInstance]:
    """The dataclass of a field; of a union, the member that the values' tag chooses."""
    if len(field.classes) == 1:
        return field.classes[0]
    tags = {member: tag_of(member, f"{field.key}.") for member in field.classes}
    key = tag_key(field)
    if key not in values:
        return type(field.default)
    value = values[key]
    allowed = functools.reduce(operator.or_, (tag.annotation for tag in tags.values()))
    value = coerce(value, allowed, key, text=isinstance(value, str))
    fitting = (member for member, tag in tags.items() if value in typing.get_args(tag.annotation))
    return next(fitting, field.classes[-1])


def tag_key(field: Field) -> str:
    """The key that chooses the member of a union."""
    return tag_of(field.classes[0], f"{field.key}.").key


def annotations_of(cls: type[DataclassInstance], values: Mapping[str, object], prefix: str) -> dict[str, object]:
    """Key -> annotation of all values that a configuration with these tags has."""
    found: dict[str, object] = {}
    for field in fields_of(cls, prefix):
        if field.classes:
            found |= annotations_of(chosen_member(field, values), values, f"{field.key}.")
        else:
            found[field.key] = field.annotation
    return found


def make(cls: type[T], values: Mapping[str, object], prefix: str) -> T:
    """Build a dataclass from finished values in one call, so that its checks see only final values."""
    arguments: dict[str, object] = {}
    for field in fields_of(cls, prefix):
        if field.classes:
            arguments[field.name] = make(chosen_member(field, values), values, f"{field.key}.")
        elif field.key in values:
            arguments[field.name] = values[field.key]
        elif field.default is dataclasses.MISSING:
            raise OptionError(f"{field.key} is required and has no default; give it a value")
    try:
        return cls(**arguments)
    except OptionError:
        raise
    except (ValueError, TypeError) as error:
        raise OptionError(str(error)) from error


def flat_items(config: DataclassInstance, prefix: str) -> Iterator[tuple[str, object]]:
    """Keys and values of a configuration, in the order of its fields."""
    for field in fields_of(type(config), prefix):
        value = getattr(config, field.name)
        if field.classes:
            yield from flat_items(value, f"{field.key}.")
        else:
            yield field.key, value


def owners_of(field: Field, key: str) -> str:
    """The members of a union that have a key, by their tags."""
    owners = (tag_of(member, f"{field.key}.") for member in field.classes if has_key(member, field, key))
    return f"{tag_key(field)}={' or '.join(str(tag) for owner in owners for tag in typing.get_args(owner.annotation))}"


def why_foreign(cls: type[DataclassInstance], key: str, values: Mapping[str, object], prefix: str = "") -> str:
    """The message for a key of a member that is not chosen."""
    field = next(f for f in fields_of(cls, prefix) if any(has_key(member, f, key) for member in f.classes))
    chosen = chosen_member(field, values)
    if has_key(chosen, field, key):
        return why_foreign(chosen, key, values, f"{field.key}.")
    tag, owners = tag_of(chosen, f"{field.key}."), owners_of(field, key)
    present = f"{tag.key}={format_value(values.get(tag.key, tag.default))}"
    return f"{key} belongs to {owners}; this run has {present}: omit it, or use {owners}"


def has_key(member: type[DataclassInstance], field: Field, key: str) -> bool:
    """Whether a field's dataclass, or this member of its union, has a key."""
    return key in keys_of(member, f"{field.key}.")


@functools.cache
def keys_of(cls: type[DataclassInstance], prefix: str = "") -> Mapping[str, object]:
    """Key -> annotation of all members."""
    found: dict[str, object] = {}

    def visit(cls: type[DataclassInstance], prefix: str) -> None:
        for field in fields_of(cls, prefix):
            for member in field.classes:
                visit(member, f"{field.key}.")
            if not field.classes:
                found[field.key] = field.annotation

    visit(cls, prefix)
    return found


def tag_keys(cls: type[DataclassInstance]) -> frozenset[str]:
    """The keys that choose members of unions."""
    return frozenset(tag_annotations(cls))


@functools.cache
def tag_annotations(cls: type[DataclassInstance]) -> Mapping[str, tuple[Any, ...]]:
    """The keys that choose members of unions, with the annotation that each member has."""
    found: dict[str, tuple[Any, ...]] = {}

    def visit(cls: type[DataclassInstance], prefix: str) -> None:
        for field in fields_of(cls, prefix):
            if field.is_tag:
                found[field.key] = (*found.get(field.key, ()), field.annotation)
            for member in field.classes:
                visit(member, f"{field.key}.")

    visit(cls, "")
    return found


def is_dataclass_instance(value: object) -> typing.TypeGuard[DataclassInstance]:
    """Whether a value is an instance of a dataclass."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def is_mapping(annotation: object) -> bool:
    """Whether an annotation allows a mapping."""
    origins = {typing.get_origin(m) or m for m in members_of(annotation)}
    return any(isinstance(o, type) and issubclass(o, Mapping) for o in origins)
