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

import difflib
import functools
import json
import operator
import re
import typing
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from rollmill.settings.option_hints import Hint, hints_for
from rollmill.settings.option_tree import (
    annotations_of,
    flat_items,
    is_dataclass_instance,
    is_mapping,
    keys_of,
    make,
    tag_annotations,
    tag_keys,
    why_foreign,
)
from rollmill.settings.option_values import (
    PYTHON_CONSTANTS,
    OptionError,
    UnknownSettingError,
    coerce,
    encode,
    format_untyped,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

# What a hint may name besides keys: arguments of ``train``.
_ARGUMENTS = frozenset({"PRESET", "run_dir", "algo"})


def flatten(config: DataclassInstance) -> dict[str, object]:
    """Values of a configuration by dotted key, in the order of the fields; mappings and tuples are values."""
    return dict(flat_items(config, ""))


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
    tags = tag_keys(cls)
    base = {k: v for k, v in flatten(config).items() if k not in given and (k in tags or not _is_in_section(k, given))}
    entries: dict[str, dict[str, object]] = {}
    for key in list(given):
        if (mapping := _mapping_above(cls, key)) is not None:
            entries.setdefault(mapping, {})[key[len(mapping) + 1 :]] = _coerce_entry(given.pop(key))
        elif key not in keys_of(cls):
            given |= _section(cls, key, given.pop(key))
    annotations = annotations_of(cls, {**base, **given}, "")
    for key in (*given, *entries):
        if key not in annotations:
            raise OptionError(why_foreign(cls, key, {**base, **given}))
    kept = {key: value for key, value in base.items() if key in annotations}
    changed = {key: coerce(value, annotations[key], key, text=isinstance(value, str)) for key, value in given.items()}
    for key, items in entries.items():
        current = typing.cast("Mapping[str, object]", kept.get(key, {}))
        changed[key] = coerce({**current, **items}, annotations[key], key)
    return make(cls, {**kept, **changed}, "")


def full_keys(config: DataclassInstance, values: Mapping[str, object]) -> dict[str, object]:
    """The values by complete dotted path, with keys resolved as in :func:`apply`.

    Raises:
        OptionError: An unknown or ambiguous key.
    """
    return {_resolve(type(config), key, value): value for key, value in values.items()}


def named_settings(config: DataclassInstance, given: Mapping[str, object]) -> dict[str, object]:
    """The settings that a user has chosen, with sections that were given as a whole taken apart.

    A section of a saved configuration names all of its settings; those with the present values are left out.

    Args:
        config: The configuration before.
        given: Values by complete key (:func:`full_keys`).

    Raises:
        OptionError: A section has no such setting.
    """
    cls, flat = type(config), flatten(config)
    annotations = annotations_of(cls, flat, "")
    found: dict[str, object] = {}
    for key, value in given.items():
        if key in keys_of(cls) or _mapping_above(cls, key) is not None:
            found[key] = value
            continue
        for name, each in _section(cls, key, value).items():
            if name not in flat or not _is_equal(each, flat[name], annotations[name], name):
                found[name] = each
    return found


def _is_equal(given: object, present: object, annotation: object, key: str) -> bool:
    """Whether a value, which may be JSON data, is the present one."""
    try:
        return bool(given == present) or given == encode(present, annotation, key)
    except OptionError:
        return False


def is_entry(cls: type[DataclassInstance], key: str) -> bool:
    """Whether a complete key sets an entry of a mapping, which may be any JSON value."""
    return _mapping_above(cls, key) is not None


def quote_entries(cls: type[DataclassInstance], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings by complete key, written such that the text of a mapping's entry stays text.

    :func:`apply` reads it as JSON where it is some, such as ``"1"``.
    """
    return {
        key: format_untyped(value) if isinstance(value, str) and is_entry(cls, key) else value
        for key, value in settings.items()
    }


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
    if full not in keys_of(cls):
        _section(cls, full, None)  # Raises: it has no value.
    annotations = annotations_of(cls, flat, "")
    if full not in annotations:
        raise OptionError(why_foreign(cls, full, flat))
    return functools.reduce(operator.or_, tag_annotations(cls).get(full, (annotations[full],)))


def encode_settings(config: DataclassInstance, keys: Collection[str]) -> dict[str, object]:
    """The values of some settings as JSON data by complete key, which :func:`apply` reads back.

    Args:
        config: The configuration that has them.
        keys: As in :func:`apply`; an entry of a mapping stands for the whole mapping, a section for all in it.

    Raises:
        OptionError: An unknown or ambiguous key, or a value that JSON cannot represent.
    """
    cls, flat = type(config), flatten(config)
    annotations = annotations_of(cls, flat, "")
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
    if is_dataclass_instance(value) and (flat := dict(flat_items(value, f"{key}."))).keys() <= keys_of(cls).keys():
        return {name: each for name, each in flat.items() if name.startswith(f"{key}.")}
    if isinstance(value, Mapping):
        return _unnest(cls, value, f"{key}.")
    hints = hints_for(key)
    foreign = f"; the setting of this name in other libraries is {_named(hints)} here" if hints else ""
    raise OptionError(
        f"{key} is a group of settings and has no value; given {value!r}{foreign}. Set one of "
        f"{', '.join(known for known in keys_of(cls) if known.startswith(f'{key}.'))}"
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
    key, known = _plain_key(cls, given), keys_of(cls)
    matches = [k for k in known if k.rpartition(".")[2] == key]
    is_section = any(k.startswith(f"{key}.") for k in known)
    is_whole = isinstance(value, Mapping) or is_dataclass_instance(value)
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


def _plain_key(cls: type[DataclassInstance], given: str) -> str:
    """The key with dots and underscores. The names of a mapping's entries are the user's own, and stay."""
    plain = given.replace("__", ".").replace("-", "_")
    mapping = _mapping_above(cls, plain)
    if mapping is None or "." not in given:
        return plain
    words = re.split(r"(\.|__)", given)  # and what divides them
    return f"{mapping}.{''.join(words[2 * len(mapping.split('.')) :])}"


def _mapping_above(cls: type[DataclassInstance], key: str) -> str | None:
    """The key of the mapping that a key sets an entry of."""
    known = keys_of(cls)
    parts = key.split(".")
    above = (".".join(parts[:n]) for n in range(1, len(parts)))
    return next((k for k in above if k in known and is_mapping(known[k])), None)


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


def to_json(config: DataclassInstance) -> dict[str, object]:
    """Convert a configuration to JSON data, nested as its keys are; ``from_json`` is the inverse.

    Raises:
        OptionError: A value that JSON cannot represent, such as a function in a mapping.
    """
    flat = flatten(config)
    annotations = annotations_of(type(config), flat, "")
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
    annotations = annotations_of(cls, flat, "")
    return make(cls, {key: coerce(flat[key], annotations[key], key) for key in flat if key in annotations}, "")


def _unnest(cls: type[DataclassInstance], data: Mapping[str, object], prefix: str) -> dict[str, object]:
    """Nested data by key."""
    known, flat = keys_of(cls), dict[str, object]()
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
