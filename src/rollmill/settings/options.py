"""Configuration dataclasses as flat dotted keys, command-line arguments and JSON, and back.

A configuration is a frozen dataclass whose fields are values or further frozen dataclasses. A **key** is the path to a
value, joined by dots: ``learner.precision``. Everything here is driven by the annotations, so a new field needs no
registration: it can be set from the command line, it is in ``config.json``, and it is in ``--help`` with the text that
the dataclass's docstring has for it in its ``Attributes`` section.

    argv --parse_overrides--> {key: text} --apply--> config --to_json--> config.json --from_json--> config

Annotations understood: ``bool``, ``int``, ``float``, ``str``, ``Path``, ``None``, ``Literal``, unions of these,
``tuple[...]``, ``Mapping[str, ...]``, ``object`` (any JSON value) and dataclasses.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import textwrap
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from rollmill.settings.option_docs import attribute_docs
from rollmill.settings.option_hints import Hint, hints_for
from rollmill.settings.option_values import OptionError, coerce, encode, format_value, type_name

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = [
    "Option",
    "OptionError",
    "apply",
    "describe",
    "flatten",
    "from_json",
    "full_keys",
    "list_options",
    "parse_overrides",
    "to_json",
]

T = TypeVar("T", bound="DataclassInstance")

# What a hint may name besides keys: arguments of ``train``.
_ARGUMENTS = frozenset({"PRESET", "run_dir", "algo"})
_PYTHON_CONSTANTS = {"True": True, "False": False, "None": None}


class Option(NamedTuple):
    """One key that can be set.

    Attributes:
        key: Dotted path, for example ``"learner.clip_range"``.
        type: Allowed values, in words.
        default: Default value in the form the command line takes; ``"required"`` where there is none.
        doc: The field's text in its dataclass's ``Attributes`` section, in one line; empty where it has none.
    """

    key: str
    type: str
    default: str
    doc: str


# ------------------------------------------------------------------------------------------------------------ reading


def flatten(config: DataclassInstance) -> dict[str, object]:
    """Values of a configuration by dotted key, in the order of the fields; mappings and tuples are values."""
    flat: dict[str, object] = {}
    for field in _fields(type(config)):
        value = getattr(config, field.name)
        if _is_dataclass_instance(value):
            flat.update({f"{field.name}.{key}": inner for key, inner in flatten(value).items()})
        else:
            flat[field.name] = value
    return flat


def list_options(cls: type[DataclassInstance]) -> list[Option]:
    """All keys of a configuration class, with type, default and documentation."""
    options: list[Option] = []
    docs = attribute_docs(cls)
    for name, annotation, default in _schema(cls):
        nested = _nested_class(annotation)
        if nested is None:
            shown = "required" if default is dataclasses.MISSING else format_value(default)
            options.append(Option(name, type_name(annotation), shown, docs.get(name, "")))
            continue
        current = flatten(default) if _is_dataclass_instance(default) else {}
        for option in list_options(nested):
            shown = format_value(current[option.key]) if option.key in current else option.default
            options.append(option._replace(key=f"{name}.{option.key}", default=shown))
    return options


def describe(cls: type[T], *, values: T | None = None, hidden: Collection[str] = frozenset(), width: int = 120) -> str:
    """Help text: one block for each key, grouped by the part it belongs to.

    Args:
        cls: Configuration class.
        values: A configuration whose values are shown instead of the defaults.
        hidden: Keys that are left out.
        width: Columns to wrap the documentation to.
    """
    shown = {} if values is None else {key: format_value(value) for key, value in flatten(values).items()}
    lines: list[str] = []
    section: str | None = None
    # Keys of the configuration itself come before those of its parts.
    shown_options = (option for option in list_options(cls) if option.key not in hidden)
    for option in sorted(shown_options, key=lambda o: "." in o.key):
        part = option.key.rpartition(".")[0]
        if part != section:
            lines += [] if section is None else [""]
            lines.append(f"{part}:" if part else "general:")
            section = part
        lines.append(f"  --{option.key.replace('_', '-')}  {option.type}  [{shown.get(option.key, option.default)}]")
        lines += textwrap.wrap(option.doc, width, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------------------------ writing


def parse_overrides(argv: Sequence[str]) -> dict[str, object]:
    """Parse ``--key value``, ``--key=value`` and bare ``--key`` (true).

    Dashes in a key are underscores. A word that starts with ``--`` is always a key; write such a value as
    ``--key=--value``. If a key is given twice, the last value counts.

    Raises:
        OptionError: A word that belongs to no key.
    """
    overrides: dict[str, object] = {}
    index = 0
    while index < len(argv):
        word = argv[index]
        index += 1
        if not word.startswith("--") or len(word) < 3:
            raise OptionError(f"unexpected argument {word!r}: settings are given as --key value or --key=value")
        key, equals, value = word[2:].partition("=")
        key = key.replace("-", "_")
        if equals:
            overrides[key] = value
        elif index < len(argv) and not argv[index].startswith("--"):
            overrides[key] = argv[index]
            index += 1
        else:
            overrides[key] = True
    return overrides


def apply(config: T, values: Mapping[str, object]) -> T:
    """Copy ``config`` with some values replaced.

    A key is a dotted path (``learner.precision``), or its last part if that is unique (``precision``). In keyword
    arguments ``__`` stands for a dot. Keys below a mapping set one of its entries (``env.kwargs.size``). Text is
    converted by the field's annotation; other values must already have its type.

    Raises:
        OptionError: An unknown or ambiguous key, a value of the wrong type or outside its range, or values that a
            dataclass's own checks reject.
    """
    tree: dict[str, Any] = {}
    for given, value in values.items():
        path = _resolve(config, given)
        node = tree
        for part in path[:-1]:
            child = node.setdefault(part, {})
            if not isinstance(child, dict):
                raise OptionError(f"{given}: {'.'.join(path[:-1])} is also set as a whole; give only one of the two")
            node = child
        if isinstance(node.get(path[-1]), dict):
            raise OptionError(f"{given} is set as a whole and in parts; give only one of the two")
        node[path[-1]] = _Leaf(value)
    return _replace(config, tree, prefix="")


def full_keys(config: DataclassInstance, values: Mapping[str, object]) -> dict[str, object]:
    """The values by complete dotted path, with keys resolved as in :func:`apply`.

    Raises:
        OptionError: An unknown or ambiguous key.
    """
    return {".".join(_resolve(config, key)): value for key, value in values.items()}


class _Leaf(NamedTuple):
    """A given value, as opposed to a subtree of keys."""

    value: object


def _replace(config: T, tree: Mapping[str, Any], *, prefix: str) -> T:
    """Build the changed dataclass in one call, so that its checks see only final values."""
    hints = _hints(type(config))
    changes: dict[str, object] = {}
    for name, node in tree.items():
        key = prefix + name
        annotation = hints[name]
        current = getattr(config, name)
        if isinstance(node, _Leaf):
            changes[name] = _coerce_leaf(node.value, annotation, key)
        elif (nested := _nested_class(annotation)) is not None:
            base = current if _is_dataclass_instance(current) else _build(nested, {}, prefix=key + ".")
            changes[name] = _replace(base, node, prefix=key + ".")
        else:
            items = {k: _coerce_entry(leaf.value) for k, leaf in _flat_leaves(node).items()}
            changes[name] = coerce({**current, **items}, annotation, key)
    try:
        return dataclasses.replace(config, **changes)
    except OptionError:
        raise
    except (ValueError, TypeError) as error:
        raise OptionError(str(error)) from error


def _coerce_leaf(value: object, annotation: object, key: str) -> object:
    nested = _nested_class(annotation)
    if nested is None:
        return coerce(value, annotation, key, text=isinstance(value, str))
    if isinstance(value, nested):
        return value
    if isinstance(value, Mapping):
        return _build(nested, value, prefix=key + ".")
    if _allows_none(annotation) and (value is None or str(value).lower() in ("none", "null")):
        return None
    hints = hints_for(key)
    foreign = f"; the setting of this name in other libraries is {_named(hints)} here" if hints else ""
    raise OptionError(
        f"{key} is a group of settings and has no value; given {value!r}{foreign}. Set one of {_keys(nested, key)}"
    )


def _coerce_entry(value: object) -> object:
    """Entry of an untyped mapping: JSON if the text is JSON, a constant of Python, or the text itself."""
    if not isinstance(value, str):
        return value
    if value in _PYTHON_CONSTANTS:
        return _PYTHON_CONSTANTS[value]
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value


def _flat_leaves(tree: Mapping[str, Any]) -> dict[str, _Leaf]:
    """Entries of a mapping; a dot in a name is part of the name."""
    flat: dict[str, _Leaf] = {}
    for name, node in tree.items():
        if isinstance(node, _Leaf):
            flat[name] = node
        else:
            flat.update({f"{name}.{inner}": leaf for inner, leaf in _flat_leaves(node).items()})
    return flat


def _resolve(config: DataclassInstance, given: str) -> tuple[str, ...]:
    """Resolve a given key: first as a complete path, then by its last part."""
    key = given.replace("__", ".").replace("-", "_")
    path = tuple(key.split("."))
    if _is_path(type(config), path):
        return path
    known = [option.key for option in list_options(type(config))]
    if len(path) == 1:
        matches = [k for k in known if k.rpartition(".")[2] == key]
        if len(matches) == 1:
            return tuple(matches[0].split("."))
        if matches and not hints_for(key):
            raise OptionError(f"{given!r} is ambiguous: give one of {', '.join(matches)}")
    raise OptionError(f"unknown setting {given!r}{_advice(key, known)}")


def _advice(key: str, known: Sequence[str]) -> str:
    """Suggestions for an unknown key: a setting that has this name in another library, or similar keys."""
    by_last = {k.rpartition(".")[2]: k for k in reversed(known)}
    last = key.rpartition(".")[2]
    close = difflib.get_close_matches(key, known, n=3, cutoff=0.75)
    close = close or [by_last[name] for name in difflib.get_close_matches(last, by_last, n=3, cutoff=0.8)]
    hints = hints_for(key) or (() if close else hints_for(key, cutoff=0.85))
    hints = tuple(hint for hint in hints if hint.key in known or hint.key in _ARGUMENTS)
    if hints:
        return f"; here it is {_named(hints)}"
    close = close or [by_last[name] for name in difflib.get_close_matches(last, by_last, n=3, cutoff=0.6)]
    return f"; did you mean {' or '.join(close)}?" if close else "; `rollmill train --help-all` lists all settings"


def _named(hints: Sequence[Hint]) -> str:
    return " or ".join(f"{hint.key} ({hint.remark})" if hint.remark else hint.key for hint in hints)


def _is_path(cls: type[DataclassInstance], path: tuple[str, ...]) -> bool:
    hints = _hints(cls)
    if path[0] not in {field.name for field in _fields(cls)}:
        return False
    if len(path) == 1:
        return True
    nested = _nested_class(hints[path[0]])
    if nested is not None:
        return _is_path(nested, path[1:])
    return _is_mapping(hints[path[0]])


# --------------------------------------------------------------------------------------------------------------- JSON


def to_json(config: DataclassInstance) -> dict[str, object]:
    """Convert a configuration to JSON data, nested as the dataclasses are; ``from_json`` is the inverse.

    Raises:
        OptionError: A value that JSON cannot represent, such as a function in a mapping.
    """
    return _to_data(config, prefix="")


def from_json(cls: type[T], data: str | Mapping[str, object]) -> T:
    """Build a configuration from JSON text or data.

    A missing field keeps its default, so that files of older versions load.

    Raises:
        OptionError: No JSON object, unknown keys, missing fields without a default, or invalid values.
    """
    loaded: object = data
    if isinstance(data, str):
        try:
            loaded = json.loads(data)
        except json.JSONDecodeError as error:
            raise OptionError(f"the configuration is not valid JSON ({error}); is the file complete?") from error
    if not isinstance(loaded, Mapping):
        raise OptionError(f"the configuration must be a JSON object of settings, not {type(loaded).__name__}")
    return _build(cls, loaded, prefix="")


def _to_data(config: DataclassInstance, *, prefix: str) -> dict[str, object]:
    hints = _hints(type(config))
    data: dict[str, object] = {}
    for field in _fields(type(config)):
        value = getattr(config, field.name)
        key = prefix + field.name
        if _is_dataclass_instance(value):
            data[field.name] = _to_data(value, prefix=key + ".")
        else:
            data[field.name] = encode(value, hints[field.name], key)
    return data


def _build(cls: type[T], data: Mapping[str, object], *, prefix: str) -> T:
    hints = _hints(cls)
    names = [field.name for field in _fields(cls)]
    unknown = sorted(set(data) - set(names))
    if unknown:
        close = difflib.get_close_matches(unknown[0], names, n=3)
        hint = f"did you mean {' or '.join(prefix + n for n in close)}?" if close else f"known: {', '.join(names)}"
        raise OptionError(f"unknown setting {prefix + unknown[0]!r}; {hint}")
    values: dict[str, object] = {}
    for field in _fields(cls):
        if field.name not in data:
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                raise OptionError(f"{prefix + field.name} is required and has no default; give it a value")
            continue
        value = data[field.name]
        key = prefix + field.name
        nested = _nested_class(hints[field.name])
        if nested is not None and isinstance(value, Mapping):
            values[field.name] = _build(nested, value, prefix=key + ".")
        elif nested is not None:
            values[field.name] = _coerce_leaf(value, hints[field.name], key)
        else:
            values[field.name] = coerce(value, hints[field.name], key)
    try:
        return cls(**values)
    except OptionError:
        raise
    except (ValueError, TypeError) as error:
        raise OptionError(str(error)) from error


# ------------------------------------------------------------------------------------------------------- introspection


@functools.cache
def _hints(cls: type) -> dict[str, object]:
    return typing.get_type_hints(cls)


@functools.cache
def _fields(cls: type[DataclassInstance]) -> tuple[dataclasses.Field[Any], ...]:
    return tuple(field for field in dataclasses.fields(cls) if field.init)


def _schema(cls: type[DataclassInstance]) -> list[tuple[str, object, object]]:
    """(name, annotation, default) of each field; the default is ``dataclasses.MISSING`` where there is none."""
    rows: list[tuple[str, object, object]] = []
    for field in _fields(cls):
        default = field.default
        if default is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        rows.append((field.name, _hints(cls)[field.name], default))
    return rows


def _is_dataclass_instance(value: object) -> typing.TypeGuard[DataclassInstance]:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _members(annotation: object) -> tuple[object, ...]:
    origin = typing.get_origin(annotation)
    return typing.get_args(annotation) if origin in (typing.Union, types.UnionType) else (annotation,)


def _nested_class(annotation: object) -> type[DataclassInstance] | None:
    """The dataclass of a field whose annotation is a dataclass, or a dataclass or None; None for other fields."""
    classes = [m for m in _members(annotation) if isinstance(m, type) and dataclasses.is_dataclass(m)]
    return classes[0] if len(classes) == 1 else None


def _allows_none(annotation: object) -> bool:
    return type(None) in _members(annotation)


def _is_mapping(annotation: object) -> bool:
    origins = {typing.get_origin(m) or m for m in _members(annotation)}
    return any(isinstance(o, type) and issubclass(o, Mapping) for o in origins)


def _keys(cls: type[DataclassInstance], prefix: str) -> str:
    return ", ".join(f"{prefix}.{option.key}" for option in list_options(cls))
