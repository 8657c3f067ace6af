"""All settings with their types, defaults and documentation, and the help text made of them."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from rollmill.settings.option_docs import attribute_docs, without_markup
from rollmill.settings.option_tree import Field, fields_of, flat_items, owners_of, tag_of
from rollmill.settings.option_values import format_value, type_name

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


class Option(NamedTuple):
    """One key that can be set.

    Attributes:
        key: Dotted path, for example ``"learner.clip_range"``.
        type: Allowed values, in words.
        default: Default value in the form the command line takes; ``"required"`` where there is none.
        doc: The field's text in its dataclass's ``Attributes`` section, in one line; empty where it has none.
        members: The members of a tagged union that have it, as ``"regime=lockstep"``; empty where all have.
        allowed: What its rule allows, in words; empty where the type says it all.
    """

    key: str
    type: str
    default: str
    doc: str
    members: str = ""
    allowed: str = ""


def list_options(cls: type[DataclassInstance]) -> list[Option]:
    """All keys of a configuration class and of all members of its unions, with type, default and documentation."""
    return list(_options(cls, ""))


def describe(cls: type[T], *, values: T | None = None, hidden: Collection[str] = frozenset(), width: int = 120) -> str:
    """Help text: one block for each key, grouped by its section and by the member that has it.

    Args:
        cls: Configuration class.
        values: A configuration whose values are shown instead of the defaults.
        hidden: Keys that are left out.
        width: Columns to wrap the documentation to.
    """
    shown = {} if values is None else {key: format_value(value) for key, value in flat_items(values, "")}
    groups: dict[str, list[str]] = {"general:": []}  # Before all others.
    for option in list_options(cls):
        if option.key in hidden:
            continue
        title = option.key.rpartition(".")[0] or "general"
        lines = groups.setdefault(f"{title}, with {option.members}:" if option.members else f"{title}:", [])
        lines.append(f"  --{option.key.replace('_', '-')}  {option.type}  [{shown.get(option.key, option.default)}]")
        lines += textwrap.wrap(without_markup(option.doc), width, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return "\n\n".join("\n".join((title, *lines)) for title, lines in groups.items() if lines)


def _options(cls: type[DataclassInstance], prefix: str, default: object = None) -> Iterator[Option]:
    """Options of a class, with the values of a default instance where there is one."""
    docs = attribute_docs(cls)
    for field in fields_of(cls, prefix):
        value = getattr(default, field.name) if isinstance(default, cls) else field.default
        if not field.classes:
            shown = "required" if value is dataclasses.MISSING else format_value(value)
            kind = type_name(field.annotation)
            yield Option(field.key, kind, shown, docs.get(field.name, ""), allowed=field.allowed)
        elif len(field.classes) == 1:
            yield from _options(field.classes[0], f"{field.key}.", value)
        else:
            yield from _options_of_members(field, value, docs.get(field.name, ""))


def _options_of_members(field: Field, default: object, doc: str) -> Iterator[Option]:
    prefix = f"{field.key}."
    of_members = [{o.key: o for o in _options(member, prefix, default)} for member in field.classes]
    tags = [tag_of(member, prefix) for member in field.classes]
    for key in dict.fromkeys(key for options in of_members for key in options):
        option = next(options[key] for options in of_members if key in options)
        if key == tags[0].key:
            allowed = " or ".join(dict.fromkeys(type_name(tag.annotation) for tag in tags))
            chosen = (tag for tag, member in zip(tags, field.classes, strict=True) if isinstance(default, member))
            shown = next(chosen, tags[0]).default
            yield option._replace(type=allowed, doc=doc or option.doc, default=format_value(shown))
        elif all(key in options for options in of_members):
            yield option
        else:
            yield option._replace(members=option.members or owners_of(field, key))
