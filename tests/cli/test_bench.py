"""``rollmill bench``: what it measures, how it prints it, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rollmill.cli.bench
from rollmill.benchmarking.summary import details
from rollmill.settings.option_values import OptionError


def bench(*words: str, **settings: object) -> int:
    command = rollmill.cli.bench.make_command()
    return command.run(command.parser.parse_args(list(words)), settings)


def test_defaults() -> None:
    command = rollmill.cli.bench.make_command()
    assert command.takes_settings
    given = command.parser.parse_args(["train"])
    assert (given.what, given.preset, given.seconds, given.verbose, given.json) == ("train", None, 30.0, False, False)
    assert (given.peers, given.install_peers) == (None, False)
    peers = command.parser.parse_args(["replay", "--peers", "here", "--install-peers"])
    assert (peers.peers, peers.install_peers) == (Path("here"), True)


@pytest.mark.parametrize(
    ("words", "settings", "message"),
    [
        ("ring", {"num_envs": 3, "seed": 1}, "the benchmark 'ring' takes no settings; given: num_envs, seed"),
        ("replay", {"num_envs": 3}, "the benchmark 'replay' takes no settings; given: num_envs"),
        ("ring gym/CartPole-v1", {}, "the benchmark 'ring' takes no preset; given: gym/CartPole-v1"),
        ("replay gym/CartPole-v1", {}, "the benchmark 'replay' takes no preset; given: gym/CartPole-v1"),
        ("ring --install-peers", {}, "--peers and --install-peers: only `rollmill bench replay` compares with peers"),
        ("sim --peers a", {}, "--peers and --install-peers: only `rollmill bench replay`"),
    ],
)
def test_options_without_a_meaning_are_refused(words: str, settings: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        bench(*words.split(), **settings)


def test_bench_says_the_summary_first_and_the_values_on_request(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = {"producers": {"1": {"rollmill": 1e7, "multiprocessing": 2e4}, "4": {"rollmill": 9e6, "faster_fifo": 5e4}}}
    monkeypatch.setattr("rollmill.benchmarking.ring.run", lambda **_: result)
    sentences = [
        "Where 1 process sends, Rollmill's queue passes 10,000,000 messages/s, multiprocessing's 20,000.",
        "Where 4 processes send, Rollmill's queue passes 9,000,000 messages/s, faster-fifo's 50,000.",
    ]
    assert bench("ring") == 0
    assert capsys.readouterr().out.splitlines() == [*sentences, "(--verbose shows all measured values.)"]
    assert bench("ring", "--verbose") == 0
    assert capsys.readouterr().out.splitlines() == [*sentences, "", *details(result).splitlines()]
    assert bench("ring", "--json") == 0
    assert json.loads(capsys.readouterr().out) == result
