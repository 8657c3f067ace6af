"""UDP ports for matches: free, and never the same twice."""

from __future__ import annotations

import socket

import pytest

from rollmill.envs import doom_ports
from rollmill.envs.doom_ports import Port


def test_ports_differ_and_can_be_used() -> None:
    ports = [Port() for _ in range(20)]
    assert len({port.number for port in ports}) == 20
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as used:
        used.bind(("", ports[0].number))
    for port in ports:
        port.close()


def test_a_port_in_use_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Port()
    monkeypatch.setattr(doom_ports, "_FIRST", first.number)
    monkeypatch.setattr(doom_ports, "_LAST", first.number + 1)
    with pytest.raises(OSError, match="no free UDP port between"):
        Port()  # Another object has it.
    first.close()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as used:
        used.bind(("", first.number))
        with pytest.raises(OSError, match="end what uses them"):
            Port()  # Another program has it.
    again = Port()
    assert again.number == first.number
    again.close()
