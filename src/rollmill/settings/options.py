"""Configuration dataclasses as flat dotted keys, command-line arguments and JSON, and back.

A configuration is a frozen dataclass whose fields are values or further frozen dataclasses. A **key** is the path to a
value, joined by dots: ``env.frameskip``. Everything here is driven by the annotations, so a new field needs no
registration: it can be set from the command line, it is in ``config.json``, and it is in ``--help`` with the text that
the dataclass's docstring has for it in its ``Attributes`` section.

    argv --parse_overrides--> {key: text} --apply--> config --to_json--> config.json --from_json--> config

Annotations understood: ``bool``, ``int``, ``float``, ``str``, ``Path``, ``None``, ``Literal``, unions of these,
``tuple[...]``, ``Mapping[str, ...]``, ``object`` (any JSON value), dataclasses and tagged unions.

A **tagged union** is a union of dataclasses, its members. One field of each member is its
:func:`rollmill.settings.fields.tag`: a ``Literal``, or ``str``, which takes every other value. The key of the tag
chooses the member, and only the keys of that member exist in the configuration. Another member's key is refused.

A class that has a section gives its fields keys in that section instead of the path to them, and
:func:`rollmill.settings.fields.setting` gives a single field a key of its own. So dataclasses can be divided by who
reads them, and keys by what users look for. JSON is nested as the keys are.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import operator
import textwrap
import types
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from rollmill.settings.option_docs import attribute_docs, without_markup
from rollmill.settings.option_hints import Hint, hints_for
from rollmill.settings.option_values import (
    PYTHON_CONSTANTS,
    OptionError,
    UnknownSettingError,
    coerce,
    encode,
    format_value,
    type_name,
)
from rollmill.settings.value_checks import key_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

# What a hint may name besides keys: arguments of ``train``.
_ARGUMENTS = frozenset({"PRESET", "run_dir", "algo"})


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


# ------------------------------------------------------------------------------------------------------------ reading


def flatten(config: DataclassInstance) -> dict[str, object]:
    """Values of a configuration by dotted key, in the order of the fields; mappings and tuples are values."""
    return dict(_flatten(config, ""))


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
    shown = {} if values is None else {key: format_value(value) for key, value in flatten(values).items()}
    groups: dict[str, list[str]] = {"general:": []}  # Before all others.
    for option in list_options(cls):
        if option.key in hidden:
            continue
        title = option.key.rpartition(".")[0] or "general"
        lines = groups.setdefault(f"{title}, with {option.members}:" if option.members else f"{title}:", [])
        lines.append(f"  --{option.key.replace('_', '-')}  {option.type}  [{shown.get(option.key, option.default)}]")
        lines += textwrap.wrap(without_markup(option.doc), width, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return "\n\n".join("\n".join((title, *lines)) for title, lines in groups.items() if lines)


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
    arguments ``__`` stands for a dot. Keys below a mapping set one of its entries (``env.kwargs.size``). A section may
    be given as a whole; what it does not name gets its default, except for tags, which stay. Text is converted by the
    field's annotation; other values must already have its type. Where another member of a union is chosen, the values
    of all keys that it shares with the present one are kept.

    Raises:
        OptionError: An unknown or ambiguous key, a key of a member that is not chosen, a value of the wrong type or
            outside its range, or values that a dataclass's own checks reject.
    """
    cls = type(config)
    given = full_keys(config, values)
    for key in given:
        if any(key.startswith(f"{other}.") for other in given):
            whole = next(other for other in given if key.startswith(f"{other}."))
            raise OptionError(f"{whole} is set as a whole and in parts ({key}); give only one of the two")
    tags = _tag_keys(cls)
    base = {k: v for k, v in flatten(config).items() if k not in given and (k in tags or not _is_in_section(k, given))}
    entries: dict[str, dict[str, object]] = {}
    for key in list(given):
        if (mapping := _mapping_above(cls, key)) is not None:
            entries.setdefault(mapping, {})[key[len(mapping) + 1 :]] = _coerce_entry(given.pop(key))
        elif key not in _keys(cls):
            given |= _section(cls, key, given.pop(key))
    annotations = _annotations(cls, {**base, **given}, "")
    for key in (*given, *entries):
        if key not in annotations:
            raise OptionError(_foreign(cls, key, {**base, **given}))
    kept = {key: value for key, value in base.items() if key in annotations}
    changed = {key: coerce(value, annotations[key], key, text=isinstance(value, str)) for key, value in given.items()}
    for key, items in entries.items():
        current = typing.cast("Mapping[str, object]", kept.get(key, {}))
        changed[key] = coerce({**current, **items}, annotations[key], key)
    return _make(cls, {**kept, **changed}, "")


def full_keys(config: DataclassInstance, values: Mapping[str, object]) -> dict[str, object]:
    """The values by complete dotted path, with keys resolved as in :func:`apply`.

    Raises:
        OptionError: An unknown or ambiguous key.
    """
    return {_resolve(type(config), key, value): value for key, value in values.items()}


def is_entry(cls: type[DataclassInstance], key: str) -> bool:
    """Whether a complete key sets an entry of a mapping, which may be any JSON value."""
    return _mapping_above(cls, key) is not None


def annotation_of(config: DataclassInstance, key: str) -> object:
    """The annotation of a setting that a configuration has.

    That of a tag allows all members. An entry of a mapping may be any JSON value.

    Raises:
        OptionError: An unknown or ambiguous key, a group of settings, or a setting of a member that is not chosen.
    """
    cls, flat = type(config), flatten(config)
    full = _resolve(cls, key, None)
    if _mapping_above(cls, full) is not None:
        return object
    if full not in _keys(cls):
        _section(cls, full, None)  # Raises: it has no value.
    annotations = _annotations(cls, flat, "")
    if full not in annotations:
        raise OptionError(_foreign(cls, full, flat))
    return functools.reduce(operator.or_, _tag_annotations(cls).get(full, (annotations[full],)))


def encode_settings(config: DataclassInstance, keys: Collection[str]) -> dict[str, object]:
    """The values of some settings as JSON data by complete key, which :func:`apply` reads back.

    Args:
        config: The configuration that has them.
        keys: As in :func:`apply`; an entry of a mapping stands for the whole mapping, a section for all in it.

    Raises:
        OptionError: An unknown or ambiguous key, or a value that JSON cannot represent.
    """
    cls, flat = type(config), flatten(config)
    annotations = _annotations(cls, flat, "")
    found: dict[str, object] = {}
    for given in keys:
        full = _resolve(cls, given, None)
        full = _mapping_above(cls, full) or full
        for key in [full] if full in flat else [key for key in flat if key.startswith(f"{full}.")]:
            found[key] = encode(flat[key], annotations[key], key)
    return found


def _is_in_section(key: str, given: Collection[str]) -> bool:
    """Whether a key's section is given as a whole."""
    return any(key.startswith(f"{other}.") for other in given)


def _section(cls: type[DataclassInstance], key: str, value: object) -> dict[str, object]:
    """The values of a section that is given as a whole, by key."""
    if _is_dataclass_instance(value) and (flat := dict(_flatten(value, f"{key}."))).keys() <= _keys(cls).keys():
        return {name: each for name, each in flat.items() if name.startswith(f"{key}.")}
    if isinstance(value, Mapping):
        return _unnest(cls, value, f"{key}.")
    hints = hints_for(key)
    foreign = f"; the setting of this name in other libraries is {_named(hints)} here" if hints else ""
    raise OptionError(
        f"{key} is a group of settings and has no value; given {value!r}{foreign}. Set one of "
        f"{', '.join(known for known in _keys(cls) if known.startswith(f'{key}.'))}"
    )


def _coerce_entry(value: object) -> object:
    """Entry of an untyped mapping: JSON if the text is JSON, a constant of Python, or the text itself."""
    if not isinstance(value, str):
        return value
    if value in PYTHON_CONSTANTS:
        return PYTHON_CONSTANTS[value]
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value


def _resolve(cls: type[DataclassInstance], given: str, value: object) -> str:
    """Resolve a given key: first as a complete path, then by its last part.

    A section that has the name of a setting elsewhere (``pbt``) is meant only by a value for a whole section.
    """
    key, known = given.replace("__", ".").replace("-", "_"), _keys(cls)
    matches = [k for k in known if k.rpartition(".")[2] == key]
    is_section = any(k.startswith(f"{key}.") for k in known)
    is_whole = isinstance(value, Mapping) or _is_dataclass_instance(value)
    if key in known or _mapping_above(cls, key) is not None or (is_section and (is_whole or not matches)):
        return key
    if "." not in key:
        if len(matches) == 1:
            return matches[0]
        if matches and not hints_for(key):
            raise OptionError(f"{given!r} is ambiguous: give one of {', '.join(matches)}")
    advice = _advice(key, known)
    listing = "; `rollmill train --help-all` lists all settings"
    raise UnknownSettingError(f"unknown setting {given!r}{advice or listing}", given, has_advice=bool(advice))


def _mapping_above(cls: type[DataclassInstance], key: str) -> str | None:
    """The key of the mapping that a key sets an entry of."""
    known = _keys(cls)
    parts = key.split(".")
    above = (".".join(parts[:n]) for n in range(1, len(parts)))
    return next((k for k in above if k in known and _is_mapping(known[k])), None)


def _advice(key: str, known: Collection[str]) -> str:
    """Suggestions for an unknown key: a setting that has this name in another library, or similar keys, or none."""
    by_last = {k.rpartition(".")[2]: k for k in reversed(list(known))}
    last = key.rpartition(".")[2]
    close = difflib.get_close_matches(key, known, n=3, cutoff=0.75)
    close = close or [by_last[name] for name in difflib.get_close_matches(last, by_last, n=3, cutoff=0.8)]
    hints = hints_for(key) or (() if close else hints_for(key, cutoff=0.85))
    hints = tuple(hint for hint in hints if hint.key in known or hint.key in _ARGUMENTS)
    if hints:
        return f"; here it is {_named(hints)}"
    close = close or [by_last[name] for name in difflib.get_close_matches(last, by_last, n=3, cutoff=0.6)]
    return f"; did you mean {' or '.join(close)}?" if close else ""


def _named(hints: Sequence[Hint]) -> str:
    return " or ".join(f"{hint.key} ({hint.remark})" if hint.remark else hint.key for hint in hints)


# --------------------------------------------------------------------------------------------------------------- JSON


def to_json(config: DataclassInstance) -> dict[str, object]:
    """Convert a configuration to JSON data, nested as its keys are; ``from_json`` is the inverse.

    Raises:
        OptionError: A value that JSON cannot represent, such as a function in a mapping.
    """
    flat = flatten(config)
    annotations = _annotations(type(config), flat, "")
    data: dict[str, Any] = {}
    for key, value in flat.items():
        *sections, name = key.split(".")
        into = functools.reduce(lambda inner, section: inner.setdefault(section, {}), sections, data)
        into[name] = encode(value, annotations[key], key)
    return data


def from_json(cls: type[T], data: str | Mapping[str, object]) -> T:
    """Build a configuration from JSON text or data.

    A missing field keeps its default, and keys of members that are not chosen do not count, so that files of older
    versions load.

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
    flat = _unnest(cls, loaded, "")
    annotations = _annotations(cls, flat, "")
    return _make(cls, {key: coerce(flat[key], annotations[key], key) for key in flat if key in annotations}, "")


def _unnest(cls: type[DataclassInstance], data: Mapping[str, object], prefix: str) -> dict[str, object]:
    """Nested data by key."""
    known, flat = _keys(cls), dict[str, object]()
    for name, value in data.items():
        key = prefix + name
        if key in known:
            flat[key] = value
        elif any(k.startswith(f"{key}.") for k in known):
            flat |= _section(cls, key, value)
        else:
            names = dict.fromkeys(k[len(prefix) :].partition(".")[0] for k in known if k.startswith(prefix))
            close = difflib.get_close_matches(name, names, n=3)
            hint = f"did you mean {' or '.join(prefix + n for n in close)}?" if close else f"known: {', '.join(names)}"
            raise OptionError(f"unknown setting {key!r}; {hint}")
    return flat


# --------------------------------------------------------------------------------------------------------- structure


class _Field(NamedTuple):
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
def _fields(cls: type[DataclassInstance], prefix: str) -> tuple[_Field, ...]:
    hints = typing.get_type_hints(cls)
    rows = []
    for field in dataclasses.fields(cls):
        if not field.init:
            continue
        default = field.default
        if default is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        members = _members(hints[field.name])
        classes = tuple(m for m in members if isinstance(m, type) and dataclasses.is_dataclass(m))
        key = key_of(cls, field.name, prefix)
        rule = field.metadata.get("rule")
        allowed = rule.text if rule is not None else ""
        rows.append(_Field(field.name, key, hints[field.name], classes, default, "is_tag" in field.metadata, allowed))
    return tuple(rows)


def _tag(member: type[DataclassInstance], prefix: str) -> _Field:
    """The field that chooses a member of a union."""
    return next(field for field in _fields(member, prefix) if field.is_tag)


def _chosen(field: _Field, values: Mapping[str, object]) -> type[DataclassInstance]:
    """The dataclass of a field; of a union, the member that the values' tag chooses."""
    if len(field.classes) == 1:
        return field.classes[0]
    tags = {member: _tag(member, f"{field.key}.") for member in field.classes}
    key = _tag_key(field)
    if key not in values:
        return type(field.default)
    value = values[key]
    allowed = functools.reduce(operator.or_, (tag.annotation for tag in tags.values()))
    value = coerce(value, allowed, key, text=isinstance(value, str))
    fitting = (member for member, tag in tags.items() if value in typing.get_args(tag.annotation))
    return next(fitting, field.classes[-1])


def _tag_key(field: _Field) -> str:
    """The key that chooses the member of a union."""
    return _tag(field.classes[0], f"{field.key}.").key


def _annotations(cls: type[DataclassInstance], values: Mapping[str, object], prefix: str) -> dict[str, object]:
    """Key -> annotation of all values that a configuration with these tags has."""
    found: dict[str, object] = {}
    for field in _fields(cls, prefix):
        if field.classes:
            found |= _annotations(_chosen(field, values), values, f"{field.key}.")
        else:
            found[field.key] = field.annotation
    return found


def _make(cls: type[T], values: Mapping[str, object], prefix: str) -> T:
    """Build a dataclass from finished values in one call, so that its checks see only final values."""
    arguments: dict[str, object] = {}
    for field in _fields(cls, prefix):
        if field.classes:
            arguments[field.name] = _make(_chosen(field, values), values, f"{field.key}.")
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


def _flatten(config: DataclassInstance, prefix: str) -> Iterator[tuple[str, object]]:
    for field in _fields(type(config), prefix):
        value = getattr(config, field.name)
        if field.classes:
            yield from _flatten(value, f"{field.key}.")
        else:
            yield field.key, value


def _options(cls: type[DataclassInstance], prefix: str, default: object = None) -> Iterator[Option]:
    """Options of a class, with the values of a default instance where there is one."""
    docs = attribute_docs(cls)
    for field in _fields(cls, prefix):
        value = getattr(default, field.name) if isinstance(default, cls) else field.default
        if not field.classes:
            shown = "required" if value is dataclasses.MISSING else format_value(value)
            kind = type_name(field.annotation)
            yield Option(field.key, kind, shown, docs.get(field.name, ""), allowed=field.allowed)
        elif len(field.classes) == 1:
            yield from _options(field.classes[0], f"{field.key}.", value)
        else:
            yield from _options_of_members(field, value, docs.get(field.name, ""))


def _options_of_members(field: _Field, default: object, doc: str) -> Iterator[Option]:
    prefix = f"{field.key}."
    of_members = [{o.key: o for o in _options(member, prefix, default)} for member in field.classes]
    tags = [_tag(member, prefix) for member in field.classes]
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
            yield option._replace(members=option.members or _owners(field, key))


def _owners(field: _Field, key: str) -> str:
    """The members of a union that have a key, by their tags."""
    owners = (_tag(member, f"{field.key}.") for member in field.classes if _has(member, field, key))
    return f"{_tag_key(field)}={' or '.join(str(tag) for owner in owners for tag in typing.get_args(owner.annotation))}"


def _foreign(cls: type[DataclassInstance], key: str, values: Mapping[str, object], prefix: str = "") -> str:
    """The message for a key of a member that is not chosen."""
    field = next(f for f in _fields(cls, prefix) if any(_has(member, f, key) for member in f.classes))
    chosen = _chosen(field, values)
    if _has(chosen, field, key):
        return _foreign(chosen, key, values, f"{field.key}.")
    tag, owners = _tag(chosen, f"{field.key}."), _owners(field, key)
    present = f"{tag.key}={format_value(values.get(tag.key, tag.default))}"
    return f"{key} belongs to {owners}; this run has {present}: omit it, or use {owners}"


def _has(member: type[DataclassInstance], field: _Field, key: str) -> bool:
    """Whether a field's dataclass, or this member of its union, has a key."""
    return key in _keys(member, f"{field.key}.")


@functools.cache
def _keys(cls: type[DataclassInstance], prefix: str = "") -> Mapping[str, object]:
    """Key -> annotation of all members."""
    found: dict[str, object] = {}

    def visit(cls: type[DataclassInstance], prefix: str) -> None:
        for field in _fields(cls, prefix):
            for member in field.classes:
                visit(member, f"{field.key}.")
            if not field.classes:
                found[field.key] = field.annotation

    visit(cls, prefix)
    return found


def _tag_keys(cls: type[DataclassInstance]) -> frozenset[str]:
    """The keys that choose members of unions."""
    return frozenset(_tag_annotations(cls))


@functools.cache
def _tag_annotations(cls: type[DataclassInstance]) -> Mapping[str, tuple[Any, ...]]:
    """The keys that choose members of unions, with the annotation that each member has."""
    found: dict[str, tuple[Any, ...]] = {}

    def visit(cls: type[DataclassInstance], prefix: str) -> None:
        for field in _fields(cls, prefix):
            if field.is_tag:
                found[field.key] = (*found.get(field.key, ()), field.annotation)
            for member in field.classes:
                visit(member, f"{field.key}.")

    visit(cls, "")
    return found


def _is_dataclass_instance(value: object) -> typing.TypeGuard[DataclassInstance]:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _members(annotation: object) -> tuple[object, ...]:
    origin = typing.get_origin(annotation)
    return typing.get_args(annotation) if origin in (typing.Union, types.UnionType) else (annotation,)


def _is_mapping(annotation: object) -> bool:
    origins = {typing.get_origin(m) or m for m in _members(annotation)}
    return any(isinstance(o, type) and issubclass(o, Mapping) for o in origins)
