"""Names, shapes and dtypes of inputs and outputs."""

from __future__ import annotations

import json

from rollmill.exporting.ports import Port, name_of_entry


def test_a_port_is_described_and_is_json() -> None:
    port = Port("camera/front", "observation", "uint8", (3, 84, 84), ("camera", 0))
    assert port.describe() == "camera/front uint8 [N, 3, 84, 84]"
    assert json.loads(json.dumps(port.to_json()))["path"] == ["camera", 0]
    assert Port("reset", "reset", "bool").describe() == "reset bool [N]"


def test_an_entry_that_is_called_like_another_input_is_told_apart() -> None:
    assert name_of_entry("state", {"state", "reset"}) == "observation/state"
    assert name_of_entry("obs", {"state", "reset"}) == "obs"
    assert name_of_entry("value", {"value", "observation/value"}) == "observation/observation/value"
