"""The page of a published agent."""

from __future__ import annotations

import json

import pytest

from rollmill.evaluation.evaluation_result import EvaluationResult
from rollmill.evaluation.model_card import CardFacts, model_card

RESULT = EvaluationResult(
    env="gym/CartPole-v1",
    checkpoint="x.pt",
    agent_steps=12_345,
    returns=(400.0, 500.0),
    lengths=(400, 500),
    mean=450.0,
    interval=(400.0, 500.0),
    frames=900,
    seconds=1.0,
    deterministic=True,
    seed=0,
)
FACTS = CardFacts(
    name="me/cartpole",
    algorithm="ppo",
    regime="async",
    result=RESULT,
    command="rollmill train gym/CartPole-v1",
    versions="Python 3.11",
    settings={"seed": "3"},
    has_video=True,
)


def metadata(card: str) -> dict[str, object]:
    _, head, _ = card.split("---\n", 2)
    parts = (line.partition(": ") for line in head.splitlines())
    return {json.loads(key): json.loads(value) for key, _, value in parts}


def test_the_card_tells_what_was_measured_and_how_to_use_it() -> None:
    card = model_card(FACTS)
    assert "mean return | 450.00, 95 % interval 400.00 to 500.00" in card
    assert "12,345" in card
    assert 'rollmill.load("hf://me/cartpole")' in card
    assert "replay.mp4" in card
    assert "| seed | 3 |" in card
    found = metadata(card)
    assert found["library_name"] == "rollmill"
    assert found["tags"] == ["reinforcement-learning", "rollmill", "ppo", "gym-CartPole-v1"]
    assert "450.00 +/- 50.00" in json.dumps(found["model-index"])


def test_what_is_not_known_is_left_out() -> None:
    card = model_card(FACTS._replace(command="", versions="", settings={}, has_video=False))
    assert "```\n\n```" not in card
    assert "replay.mp4" not in card
    assert "differ from the defaults" not in card


@pytest.mark.parametrize("text", ["<script>", "[a](http://b)", "a | b", "```\nx\n```", "# a", "---"])
def test_text_of_a_stranger_is_only_text(text: str) -> None:
    card = model_card(FACTS._replace(settings={text: text}, command=text, versions=text))
    body = card.split("---\n", 2)[2]
    code = body.split("## Training\n\n```\n", 1)[1].split("\n```\n", 1)
    assert "```" not in code[0]
    for mark in ("<script>", "[a](http", "a | b"):
        assert mark not in code[1]
    assert metadata(card)["library_name"] == "rollmill"
