"""The fields of a transition, and what is taken for an array of one."""

import numpy as np
import pytest

from rollmill.replay import PrioritizedReplay
from rollmill.replay.fields import Field, array_of, fields_of, flattened, observations_of, spread


def test_nested_names_are_joined_by_slashes_in_their_order():
    tree = {"b": {"y": 1, "x": {"deep": 2}}, "a": 3}
    assert list(flattened(tree).items()) == [("b/y", 1), ("b/x/deep", 2), ("a", 3)]
    assert flattened({}) == {}


def test_a_name_that_is_given_twice_is_refused():
    with pytest.raises(ValueError, match=r"\['a/b'\] are given twice, nested and by their whole names; give them once"):
        flattened({"a": {"b": 1}, "a/b": 2})
    with pytest.raises(ValueError, match="1 is given as a name; give a string"):
        flattened({"a": {1: 2}})


def test_fields_have_a_whole_shape_and_a_dtype():
    found = fields_of({"obs": {"picture": ((4, 84), np.uint8), "v": (3, "f4")}, "action": (np.array([2]), int)})
    assert found == (
        Field("obs/picture", (4, 84), np.dtype("uint8")),
        Field("obs/v", (3,), np.dtype("float32")),
        Field("action", (2,), np.dtype("int64")),
    )
    assert all(type(axis) is int for field in found for axis in field.shape)


def test_dtypes_of_the_same_size_have_the_same_format():
    # C has two names for an integer of 64 bits, which NumPy tells apart.
    first, second = (fields_of({"x": ((), kind)})[0] for kind in (np.longlong, np.int64))
    assert first.buffer_format == second.buffer_format == "l"
    formats = {kind: fields_of({"x": ((), kind)})[0].buffer_format for kind in ("bool", "float16", "uint8")}
    assert formats == {"bool": "?", "float16": "e", "uint8": "B"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "fields is empty; say what a transition is made of"),
        ({"a": {}}, "fields is empty"),
        (["obs"], r"fields is \['obs'\]; give a mapping, such as"),
        ({"obs": ((2.5,), "float32")}, r"field 'obs' is \(\(2.5,\), 'float32'\); give \(shape of one"),
        ({"obs": 3}, "field 'obs' is 3; give"),
        ({"obs": ((), "float33")}, "field 'obs' is .*; give"),
        ({"obs": ((2,), "O")}, "field 'obs' has dtype object; it must be bool, an integer or float16/32/64"),
        ({"obs": ((2,), "U3")}, "field 'obs' has dtype <U3"),
        ({"obs": ((2,), "complex64")}, "field 'obs' has dtype complex64"),
        ({"obs": ((2,), np.longdouble)}, "field 'obs' has dtype float128"),
        ({"obs": ((2,), ">f4")}, "field 'obs' has dtype >f4; .* in the machine's order"),
        ({"obs": ((3, 0), "int8")}, r"field 'obs' has shape \(3, 0\); every axis must be at least 1"),
        ({"obs": ((2**20, 2**11), "uint8")}, "field 'obs' has 2 GiB a transition or more"),
    ],
)
def test_what_is_no_field_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        fields_of(fields)


def test_observations_have_a_next_one_unless_it_is_given():
    specs = {"obs/a": 0, "obs": 0, "obstacle": 0, "reward": 0}
    assert observations_of(specs) == ["obs/a", "obs"]
    assert observations_of(specs | {"next_obs": 0}) == []
    assert observations_of(specs | {"next_obs/a": 0}) == []
    assert observations_of({"action": 0}) == []


def test_a_name_stands_for_all_that_is_nested_in_it():
    specs = {"obs/b": 0, "obs/a": 0, "obstacle": 0, "goal": 0}
    assert spread(["obs", "goal"], specs) == ["obs/b", "obs/a", "goal"]
    assert spread(("obs/a",), specs) == ["obs/a"]
    assert spread(["missing"], specs) == ["missing"]  # Refused by those who know what may be named.
    assert spread((), specs) == []
    for wrong in ("obs", 3):
        with pytest.raises(ValueError, match=r"next_of is .*; give a sequence of names, such as \("):
            spread(wrong, specs)


FLOAT32 = np.dtype("float32")


def test_an_array_that_fits_is_not_copied():
    given = np.zeros((5, 2), np.float32)
    assert array_of("x", given, (2,), FLOAT32, 5) is given
    assert array_of("x", given, (2,), FLOAT32, None) is given


def test_other_orders_and_dtypes_become_the_arrays_own():
    every_other = np.arange(24, dtype=np.float64).reshape(4, 6)[:, ::2]
    found = array_of("x", every_other, (3,), FLOAT32, 4)
    assert found.dtype == FLOAT32
    assert found.flags.c_contiguous
    np.testing.assert_array_equal(found, every_other)
    unaligned = np.frombuffer(b"\0" + np.arange(3, dtype=np.float32).tobytes(), np.float32, offset=1)
    assert array_of("x", unaligned, (), FLOAT32, 3).flags.aligned


def test_one_row_may_lack_the_axis_of_rows():
    for rows in (1, None):
        assert array_of("x", [1.0, 2.0], (2,), FLOAT32, rows).tolist() == [[1.0, 2.0]]
        assert array_of("x", 3, (), FLOAT32, rows).tolist() == [3.0]
    with pytest.raises(ValueError, match=r"x has shape \[2\]; give \[3, 2\]"):
        array_of("x", [1.0, 2.0], (2,), FLOAT32, 3)


@pytest.mark.parametrize(
    ("given", "shape", "rows", "message"),
    [
        (np.zeros((3, 2)), (2,), 2, r"x has shape \[3, 2\]; give \[2, 2\]"),
        (np.zeros((3, 3)), (2,), None, r"x has shape \[3, 3\]; give \[N, 2\]"),
        (np.zeros((3, 2, 1)), (2,), 3, r"x has shape \[3, 2, 1\]; give \[3, 2\]"),
        (np.zeros(2, complex), (), 2, "x has dtype complex128, which is not converted to float32; give float32"),
        (np.array(["a", "b"]), (), 2, "x has dtype <U1, which is not converted to float32"),
        ([[1.0], [1.0, 2.0]], (), 2, "x cannot be read as an array"),
    ],
)
def test_arrays_of_another_shape_or_kind_are_refused(given, shape, rows, message):
    with pytest.raises(ValueError, match=message):
        array_of("x", given, shape, FLOAT32, rows)


def test_truth_is_not_made_of_numbers():
    with pytest.raises(ValueError, match="x has dtype int64, which is not converted to bool; give bool"):
        array_of("x", [0, 1], (), np.dtype(bool), 2)
    assert array_of("x", [True, False], (), FLOAT32, 2).tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("dtype", "given", "message"),
    [
        ("int8", np.array([1, 300]), "x has 300, which does not fit int8; give -128 to 127"),
        ("int64", np.array([1, 2**63], np.uint64), "x has 9223372036854775808, which does not fit int64"),
        ("uint8", np.array([256], np.uint16), "x has 256, which does not fit uint8; give 0 to 255"),
        ("float32", [1.0, -1e300], r"x has -1e\+300, which does not fit float32"),
        ("float16", np.array([70_000]), "x has 70000, which does not fit float16"),
        ("float32", [[1.0], [1.0, 2.0]], "x cannot be read as an array"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(dtype, given, message):
    replay = PrioritizedReplay(10, {"x": ((), dtype)})
    with pytest.raises(ValueError, match=message):
        replay.add(x=given)
    assert len(replay) == 0


def test_numbers_that_fit_are_converted():
    replay = PrioritizedReplay(10, {"x": ((), "int8"), "y": ((), "float32")})
    replay.add(x=np.array([-128, 127]), y=np.array([np.inf, 0.1]))
    replay.add(x=np.empty(0, np.int64), y=np.empty(0))
    batch = replay.sample(50)
    assert set(batch["x"].tolist()) == {-128, 127}
    assert set(batch["y"].tolist()) == {np.inf, float(np.float32(0.1))}
