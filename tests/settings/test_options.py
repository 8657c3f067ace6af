"""Configuration as dotted keys, arguments and JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.settings.fields import setting, tag
from rollmill.settings.option_list import describe, list_options
from rollmill.settings.option_values import OptionError, coerce
from rollmill.settings.options import (
    annotation_of,
    apply,
    encode_settings,
    flatten,
    from_json,
    parse_overrides,
    quote_entries,
    to_json,
)


@dataclass(frozen=True, kw_only=True)
class Learner:
    """A part.

    Attributes:
        rate: Step size,
            in two lines.
        precision: Bits: any.
    """

    rate: float = 1e-4
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    micro_batch: int | Literal["auto"] = "auto"
    clip: float | None = None
    betas: tuple[float, float] = (0.9, 0.999)
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.rate < 0:
            raise ValueError(f"learner.rate={self.rate}: must not be negative")


@dataclass(frozen=True, kw_only=True)
class Extra:
    depth: int = 3


@dataclass(frozen=True, kw_only=True)
class Whole:
    """The whole.

    Attributes:
        num_envs: How many.
    """

    name: str
    learner: Learner = field(default_factory=Learner)
    extra: Extra = field(default_factory=Extra)
    num_envs: int = 4
    device: str = "auto"
    kwargs: Mapping[str, object] = field(default_factory=dict)
    names: Mapping[str, float] = field(default_factory=dict)
    sizes: tuple[int, ...] = (64, 64)
    words: tuple[str, ...] = ()
    fast: bool = False
    vector: Literal["auto"] | bool = "auto"
    folder: Path | None = None


START = Whole(name="start")


def given_words(words: str) -> Whole:
    return apply(START, parse_overrides(words.split()))


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        ("--num-envs 1e6", "num_envs", 1_000_000),
        ("--num_envs=1_000", "num_envs", 1000),
        ("--num-envs 0x10", "num_envs", 16),
        ("--learner.rate 3e-4", "learner.rate", 3e-4),
        ("--rate 1", "learner.rate", 1.0),
        ("--rate inf", "learner.rate", math.inf),
        ("--precision FP32", "learner.precision", "fp32"),
        ("--learner.micro-batch 64", "learner.micro_batch", 64),
        ("--micro-batch auto", "learner.micro_batch", "auto"),
        ("--clip 0.2", "learner.clip", 0.2),
        ("--clip none", "learner.clip", None),
        ("--betas 0.5,1", "learner.betas", (0.5, 1.0)),
        ("--device cuda", "device", "cuda"),
        ("--learner.device cuda", "learner.device", "cuda"),
        ("--learner__device cuda", "learner.device", "cuda"),
        ("--sizes 1,2,3", "sizes", (1, 2, 3)),
        ("--sizes [1,2]", "sizes", (1, 2)),
        ("--sizes=", "sizes", ()),
        ("--words a,b", "words", ("a", "b")),
        ("--fast", "fast", True),
        ("--fast off", "fast", False),
        ("--fast yes", "fast", True),
        ("--vector false", "vector", False),
        ("--vector auto", "vector", "auto"),
        ("--folder a/b", "folder", Path("a/b")),
        ("--folder none", "folder", None),
        ("--name=--odd", "name", "--odd"),
        ("--num-envs 2 --num-envs 3", "num_envs", 3),
        ('--kwargs {"a":[1,2]}', "kwargs", {"a": [1, 2]}),
        ("--kwargs.size [84,84] --kwargs.mode rgb", "kwargs", {"size": [84, 84], "mode": "rgb"}),
        ("--kwargs.a.b 1", "kwargs", {"a.b": 1}),
        ('--kwargs.level "1"', "kwargs", {"level": "1"}),
        ("--kwargs.slippery False --kwargs.other None", "kwargs", {"slippery": False, "other": None}),
        ("--names.x 2", "names", {"x": 2.0}),
        ("--extra.depth 5", "extra.depth", 5),
    ],
)
def test_words_become_typed_values(words: str, key: str, value: object) -> None:
    flat = flatten(given_words(words))
    assert flat[key] == value
    assert type(flat[key]) is type(value)


def test_nothing_else_changes() -> None:
    before, after = flatten(START), flatten(given_words("--learner.rate 1 --num-envs 5"))
    assert {key for key in before if before[key] != after[key]} == {"learner.rate", "num_envs"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--num-envs 1.5", r"num_envs: '1.5' was given; allowed is an integer"),
        ("--num-envs many", "allowed is an integer"),
        ("--rate fast", "allowed is a number"),
        ("--precision fp17", "allowed is auto or fp32 or bf16"),
        ("--clip much", "a number or none"),
        ("--betas 1", r"a list \(a number, a number\)"),
        ("--sizes a", r"a list \(an integer\)"),
        ("--fast maybe", "true or false"),
        ("--fast=", "true or false"),
        ("--name", "name: True .* allowed is text"),
        ("--kwargs 3", "a JSON object"),
        ("--kwargs {", "a JSON object"),
        ("--num-env 3", "did you mean num_envs"),
        ("--learner.precission fp32", "did you mean learner.precision"),
        ("--wrong.rate 1", "did you mean learner.rate"),
        ("--zzzzz 1", "rollmill train --help"),
        ("--learner 3", "is a group of settings .* learner.rate"),
        ("--rate=-1", "must not be negative"),
        ("stray", "unexpected argument 'stray'"),
        ("-x 3", "unexpected argument '-x'"),
        ("--kwargs {} --kwargs.a 1", "set as a whole"),
        ("--kwargs.a 1 --kwargs {}", "as a whole and in parts"),
    ],
)
def test_what_does_not_fit_is_refused(words: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        given_words(words)


def test_an_ambiguous_last_part_names_the_candidates() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Two:
        a: Extra = field(default_factory=Extra)
        b: Extra = field(default_factory=Extra)

    with pytest.raises(OptionError, match=r"'depth' is ambiguous: give one of a.depth, b.depth"):
        apply(Two(), {"depth": 1})
    assert apply(Two(), {"b.depth": 1}).b.depth == 1


def test_python_values_keep_their_type() -> None:
    config = apply(START, {"betas": [0.1, 1]})
    assert config.learner.betas == (0.1, 1.0)
    assert apply(START, {"num_envs": 5.0}).num_envs == 5
    for key, value in (("num_envs", True), ("num_envs", "x"), ("fast", 1), ("name", 3), ("sizes", 3), ("folder", 3)):
        with pytest.raises(OptionError, match=key):
            apply(START, {key: value})


def test_names_of_a_mapping_s_entries_are_the_user_s_own() -> None:
    given = {"names.forward-reward": 1, "names.a__b": 2, "kwargs.my-arg": 3, "names__c_d": 4}
    config = apply(START, given)
    assert config.names == {"forward-reward": 1.0, "a__b": 2.0, "c_d": 4.0}
    assert config.kwargs == {"my-arg": 3}
    assert apply(START, {"num-envs": 5, "learner__rate": 0.5}) == apply(START, {"num_envs": 5, "learner.rate": 0.5})


def test_the_text_of_an_entry_can_stay_text() -> None:
    settings_of_entries = {"kwargs.a": "1", "kwargs.b": "word", "kwargs.c": 1, "name": "1"}
    quoted = quote_entries(Whole, settings_of_entries)
    assert apply(START, quoted).kwargs == {"a": "1", "b": "word", "c": 1}
    assert apply(START, quoted).name == "1"


def test_scalars_of_numpy_are_numbers() -> None:
    config = apply(START, {"num_envs": np.int64(5), "rate": np.float32(0.5), "clip": np.array(2.0)})
    assert to_json(config)["num_envs"] == 5
    assert (config.learner.rate, config.learner.clip) == (0.5, 2.0)
    assert type(config.num_envs) is int
    with pytest.raises(OptionError, match="num_envs"):
        apply(START, {"num_envs": np.float32(5.5)})
    with pytest.raises(OptionError, match="kwargs"):  # What an environment gets is never converted.
        to_json(apply(START, {"kwargs": {"size": np.float32(1)}}))


def test_the_text_of_a_single_entry_is_read_as_json() -> None:
    assert apply(START, {"kwargs.level": "1"}).kwargs == {"level": 1}
    assert apply(START, {"kwargs": {"level": "1"}}).kwargs == {"level": "1"}


def test_parts_may_be_given_whole() -> None:
    assert apply(START, {"learner": Learner(rate=2.0)}).learner.rate == 2.0
    assert apply(START, {"learner": {"rate": 2}}).learner.rate == 2.0


def test_checks_see_only_the_final_values() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Pair:
        low: int = 0
        high: int = 1

        def __post_init__(self) -> None:
            if self.low >= self.high:
                raise ValueError("low must be below high")

    assert apply(Pair(), {"low": 5, "high": 6}) == Pair(low=5, high=6)
    with pytest.raises(OptionError, match="low must be below high"):
        apply(Pair(), {"low": 5})


def test_unsupported_annotations_are_our_own_mistake() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Odd:
        value: set[int] = field(default_factory=set)

    with pytest.raises(TypeError, match="cannot be a setting"):
        apply(Odd(), {"value": "1"})


# --------------------------------------------------------------------------------------------------------------- JSON

numbers = st.floats(allow_nan=False)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()
)
untyped = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=5), inner, max_size=3),
    ),
    max_leaves=8,
)
learners = st.builds(
    Learner,
    rate=st.floats(min_value=0, allow_nan=False),
    precision=st.sampled_from(["auto", "fp32", "bf16"]),
    micro_batch=st.one_of(st.integers(), st.just("auto")),
    clip=st.one_of(st.none(), numbers),
    betas=st.tuples(numbers, numbers),
    device=st.text(),
)
wholes = st.builds(
    Whole,
    name=st.text(),
    learner=learners,
    extra=st.builds(Extra, depth=st.integers()),
    num_envs=st.integers(),
    device=st.text(),
    kwargs=st.dictionaries(st.text(), untyped, max_size=4),
    names=st.dictionaries(st.text(), numbers, max_size=3),
    sizes=st.lists(st.integers(), max_size=4).map(tuple),
    words=st.lists(st.text(), max_size=3).map(tuple),
    fast=st.booleans(),
    vector=st.one_of(st.just("auto"), st.booleans()),
    folder=st.one_of(st.none(), st.just(Path("a/b"))),
)


def exact(value: object) -> object:
    """The value with the type of everything in it, so that 1, 1.0 and True differ."""
    if isinstance(value, Mapping):
        return {name: exact(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value), [exact(item) for item in value]
    return type(value), value


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(wholes)
def test_json_gives_the_same_configuration_back(config: Whole) -> None:
    text = json.dumps(to_json(config), allow_nan=False)
    again = from_json(Whole, text)
    assert again == config
    assert exact(flatten(again)) == exact(flatten(config))
    assert from_json(Whole, json.loads(text)) == config


@settings(max_examples=40, deadline=None)
@given(wholes)
def test_flat_keys_rebuild_the_configuration(config: Whole) -> None:
    flat: dict[str, Any] = dict(flatten(config))
    # Texts are read by their annotation, as from a command line; where that is text they stay what they are.
    assert apply(replace(config, num_envs=0, kwargs={}), flat) == config


def test_nan_survives() -> None:
    again = from_json(Whole, json.dumps(to_json(replace(START, learner=Learner(clip=math.nan))), allow_nan=False))
    assert again.learner.clip is not None
    assert math.isnan(again.learner.clip)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("{", "not valid JSON"),
        ("[1]", "must be a JSON object"),
        ("{}", "name is required"),
        ('{"name": "a", "num_env": 1}', "unknown setting 'num_env'; did you mean num_envs"),
        ('{"name": "a", "learner": {"zzz": 1}}', r"unknown setting 'learner.zzz'; known: rate"),
        ('{"name": "a", "num_envs": "4"}', r"num_envs: '4' \(str\) was given"),
        ('{"name": "a", "learner": {"rate": -1}}', "must not be negative"),
        ('{"name": "a", "learner": 4}', "learner is a group of settings"),
    ],
)
def test_damaged_json_is_refused(data: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        from_json(Whole, data)


def test_missing_fields_keep_their_defaults() -> None:
    assert from_json(Whole, {"name": "start"}) == START


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"f": print}, "cannot be saved in config.json"),
        ({"f": math.inf}, "cannot be saved"),
        ({"f": {1: 2}}, "is not text"),
        ({"f": {"$tuple": [1]}}, "use another name"),
    ],
)
def test_what_json_cannot_hold_is_refused(kwargs: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        to_json(replace(START, kwargs=kwargs))


# --------------------------------------------------------------------------------------------------------------- help


def test_options_carry_type_default_and_documentation() -> None:
    options = {option.key: option for option in list_options(Whole)}
    assert set(options) == set(flatten(START))
    assert options["learner.rate"].doc == "Step size, in two lines."
    assert options["learner.rate"].default == "0.0001"
    assert options["learner.precision"].doc == "Bits: any."
    assert options["name"].default == "required"
    assert options["sizes"].default == "64,64"
    assert options["learner.micro_batch"].type == "an integer or auto"


def test_the_help_names_every_key_in_the_form_of_the_command_line() -> None:
    text = describe(Whole)
    for option in list_options(Whole):
        assert f"--{option.key.replace('_', '-')}  {option.type}  [{option.default}]" in text
    assert "How many." in text


def test_the_real_configuration_is_documented_and_survives_json() -> None:
    from rollmill.envs.config import EnvConfig
    from rollmill.settings.config import Config

    config = Config(env=EnvConfig(name="gym/CartPole-v1", kwargs={"size": (1, 2)}))
    assert from_json(Config, json.dumps(to_json(config), allow_nan=False)) == config
    options = {option.key: option for option in list_options(Config)}
    assert [key for key, option in options.items() if not option.doc] == []
    assert options["learner.clip_range"].allowed == "a finite number above 0"
    assert options["learner.max_policy_lag"].allowed == "an integer of at least 0"
    assert options["debug_poison"].allowed == ""


# ------------------------------------------------------------------------------------------------------------- unions


@dataclass(frozen=True, kw_only=True)
class Free:
    """Own pace.

    Attributes:
        num_slots: Slots.
    """

    SECTION: ClassVar[str] = ""

    name: Literal["free"] = tag("free", key="pace")
    num_slots: int = 4
    publish_every: int = setting(2, key="part.publish_every")


@dataclass(frozen=True, kw_only=True)
class Exact:
    SECTION: ClassVar[str] = ""

    name: Literal["exact"] = tag("exact", key="pace")
    lag: int = 1


@dataclass(frozen=True, kw_only=True)
class Method:
    SECTION: ClassVar[str] = "part"

    discount: float = 0.99


@dataclass(frozen=True, kw_only=True)
class Near(Method):
    SECTION: ClassVar[str] = "near"

    name: Literal["near"] = tag("near", key="part.method")
    clip: float = setting(0.1, key="part.clip")


@dataclass(frozen=True, kw_only=True)
class Far(Method):
    SECTION: ClassVar[str] = "far"

    name: Literal["far"] = tag("far", key="part.method")
    tau: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Other(Method):
    SECTION: ClassVar[str] = "far"

    name: str = tag("", key="part.method")
    tau: float = 1.0
    sigma: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run.

    Attributes:
        pace: The pace.
    """

    pace: Free | Exact = field(default_factory=Free)
    method: Near | Far | Other = field(default_factory=Near)
    part: Extra = field(default_factory=Extra)


def test_the_tag_chooses_the_member() -> None:
    assert apply(Run(), {"pace": "exact", "lag": "3"}).pace == Exact(lag=3)
    assert apply(Run(), {"part.method": "FAR", "tau": 0.5}).method == Far(tau=0.5)
    assert apply(Run(), {"part.method": "mine", "sigma": 2}).method == Other(name="mine", sigma=2)


def test_keys_of_sections_reach_the_dataclass_that_owns_them() -> None:
    run = apply(Run(), {"part.discount": 0.5, "part.clip": 0.2, "part.publish_every": 3, "part.depth": 4})
    assert run == Run(pace=Free(publish_every=3), method=Near(discount=0.5, clip=0.2), part=Extra(depth=4))
    assert apply(run, {"part": {"depth": 5}}) == Run(part=Extra(depth=5))
    assert apply(run, {"part": {"depth": 5, "discount": 0.1}}) == Run(method=Near(discount=0.1), part=Extra(depth=5))


def test_members_share_the_values_of_the_keys_that_they_share() -> None:
    run = apply(Run(method=Near(discount=0.5, clip=0.3)), {"part.method": "far"})
    assert run.method == Far(discount=0.5)
    assert apply(run, {"part.method": "near"}).method == Near(discount=0.5)
    assert apply(run, {"part.method": "mine"}).method == Other(name="mine", discount=0.5)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lag": 3}, "lag belongs to pace=exact; this run has pace=free: omit it, or use pace=exact"),
        ({"pace": "exact", "num_slots": 3}, "num_slots belongs to pace=free; this run has pace=exact"),
        ({"part.clip": 3, "part.method": "mine"}, "part.clip belongs to part.method=near; .* part.method=mine"),
        ({"tau": 3}, "far.tau belongs to part.method=far; this run has part.method=near"),
        ({"pace": "none"}, "pace: 'none' was given; allowed is free or exact"),
        ({"part": Learner()}, "part is a group of settings"),
    ],
)
def test_keys_of_other_members_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        apply(Run(), values)


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: Literal["outer"] = tag("outer", key="either")
    inner: Free | Exact = field(default_factory=Free)


@dataclass(frozen=True, kw_only=True)
class Simple:
    name: Literal["simple"] = tag("simple", key="either")


@dataclass(frozen=True, kw_only=True)
class Nested:
    either: Outer | Simple = field(default_factory=Outer)


def test_unions_inside_of_unions_say_which_choice_is_missing() -> None:
    assert apply(Nested(), {"pace": "exact", "lag": 2}).either == Outer(inner=Exact(lag=2))
    with pytest.raises(OptionError, match=r"lag belongs to pace=exact; this run has pace=free"):
        apply(Nested(), {"lag": 2})
    with pytest.raises(OptionError, match=r"lag belongs to either=outer; this run has either=simple"):
        apply(Nested(either=Simple()), {"lag": 2})


@pytest.mark.parametrize("run", [Run(), Run(pace=Exact(lag=2), method=Far(tau=0.1)), Run(method=Other(name="mine"))])
def test_json_is_nested_as_the_keys_are(run: Run) -> None:
    data = to_json(run)
    assert from_json(Run, json.dumps(data)) == run
    assert data["pace"] == run.pace.name
    assert isinstance(data["part"], dict)
    assert data["part"]["discount"] == 0.99
    assert ("lag" in data) == isinstance(run.pace, Exact)


def test_files_may_hold_the_keys_of_other_members() -> None:
    assert from_json(Run, {"pace": "exact", "lag": 2, "num_slots": 8, "far": {"tau": 0.1}}) == Run(pace=Exact(lag=2))


def test_the_help_lists_members_under_their_tag() -> None:
    options = {option.key: option for option in list_options(Run)}
    assert options["pace"][1:] == ("free or exact", "free", "The pace.", "", "")
    assert (options["lag"].members, options["num_slots"].members) == ("pace=exact", "pace=free")
    assert options["far.tau"].members == "part.method=far"
    assert (options["part.discount"].members, options["part.clip"].members) == ("", "part.method=near")
    text = describe(Run)
    assert "general, with pace=exact:\n  --lag  an integer  [1]" in text
    assert "--num-slots  an integer  [7]" in describe(Run, values=Run(pace=Free(num_slots=7)))


def real_config() -> Any:
    from rollmill.api import make_config

    return make_config("gym/CartPole-v1", {"env.kwargs.size": 5, "env.kwargs.name": "a"})


def test_the_annotation_of_a_setting_is_that_of_its_class() -> None:
    config = real_config()
    assert annotation_of(config, "learning_rate") is float
    assert annotation_of(config, "env.kwargs.size") is object
    # A tag takes the names of all members, whichever is chosen.
    for value in ("adam", "rmsprop"):
        assert coerce(value, annotation_of(config, "learner.optimiser"), "") == value
    with pytest.raises(OptionError, match=r"off_policy\.tau belongs to regime=replay"):
        annotation_of(config, "off_policy.tau")
    with pytest.raises(OptionError, match="learner is a group of settings and has no value"):
        annotation_of(config, "learner")
    with pytest.raises(OptionError, match="unknown setting 'lr'"):
        annotation_of(config, "lr")


def test_encoded_settings_are_read_back() -> None:
    config = real_config()
    found = encode_settings(config, ["learning_rate", "model.mlp_sizes", "env.kwargs.size", "learner.optimiser"])
    assert found == {
        "learner.learning_rate": config.optimiser.learning_rate,
        "model.mlp_sizes": [64, 64],
        "env.kwargs": {"size": 5, "name": "a"},
        "learner.optimiser": "adam",
    }
    assert apply(config, json.loads(json.dumps(found))) == config
    assert encode_settings(config, ["placement"])["placement.pin"] == "auto"
    with pytest.raises(OptionError, match="unknown setting 'lr'"):
        encode_settings(config, ["lr"])
