"""The page of a published agent: what it is, how good it is, how it was trained, and how to use it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import NamedTuple

from rollmill.evaluation.evaluation_result import EvaluationResult


class CardFacts(NamedTuple):
    """What a card tells.

    Attributes:
        name: Of the repository, ``USER/NAME``.
        algorithm: For example ``"ppo"``.
        regime: For example ``"async"``.
        result: The evaluation of the published network.
        command: What trained it; empty if it is not known.
        versions: Of the packages that trained it; empty if they are not known.
        settings: Settings that differ from the defaults.
        has_video: Whether ``replay.mp4`` is beside the card.
    """

    name: str
    algorithm: str
    regime: str
    result: EvaluationResult
    command: str
    versions: str
    settings: Mapping[str, str]
    has_video: bool


def model_card(facts: CardFacts) -> str:
    """Return the card: Markdown after metadata in YAML, of which JSON is a part."""
    result = facts.result
    how = "most probable or best" if result.deterministic else "sampled"
    metadata = {
        "library_name": "rollmill",
        "tags": ["reinforcement-learning", "rollmill", facts.algorithm, _plain(result.env)],
        "model-index": [
            {
                "name": facts.algorithm,
                "results": [
                    {
                        "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
                        "dataset": {"type": _plain(result.env), "name": result.env},
                        "metrics": [
                            {
                                "type": "mean_reward",
                                "name": "mean_reward",
                                "value": f"{result.mean:.2f} +/- {_deviation(result):.2f}",
                                "verified": False,
                            }
                        ],
                    }
                ],
            }
        ],
    }
    lines = [
        "---",
        *(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in metadata.items()),
        "---",
        "",
        f"# {_inline(facts.algorithm.upper())} on {_inline(result.env)}",
        "",
        "An agent trained with Rollmill.",
        "",
        "| | |",
        "|---|---|",
        f"| mean return | {result.mean:,.2f}, {result.interval_text} |",
        f"| episodes | {len(result.returns)}, {how} actions |",
        f"| agent steps of training | {result.agent_steps:,} |",
        f"| algorithm | {_inline(facts.algorithm)}, regime {_inline(facts.regime)} |",
        "",
        "## Use",
        "",
        "```python",
        "import rollmill",
        "",
        f'agent = rollmill.load("hf://{facts.name}")',
        "action = agent.act(observation)  # as env.reset() and env.step() return it",
        "```",
        "",
    ]
    if facts.has_video:
        lines += ["The video `replay.mp4` shows an episode.", ""]
    lines += ["## Training", ""]
    if facts.command:
        lines += ["```", *_fenced(facts.command), "```", ""]
    if facts.versions:
        lines += [_inline(facts.versions), ""]
    if facts.settings:
        lines += ["Settings that differ from the defaults (`config.json` has all):", ""]
        lines += ["| setting | value |", "|---|---|"]
        lines += [f"| {_inline(key)} | {_inline(value)} |" for key, value in facts.settings.items()]
        lines.append("")
    return "\n".join(lines)


def _deviation(result: EvaluationResult) -> float:
    number = len(result.returns)
    mean = sum(result.returns) / number
    return float((sum((value - mean) ** 2 for value in result.returns) / number) ** 0.5)


def _plain(name: str) -> str:
    """A tag: letters, digits and a few signs."""
    return re.sub(r"[^\w.-]+", "-", name).strip("-") or "environment"


def _inline(text: str) -> str:
    """Text of a user's in a line of Markdown."""
    return re.sub(r"([\\`*_{}\[\]<>|#])", r"\\\1", " ".join(text.split()))


def _fenced(text: str) -> list[str]:
    return [line.replace("```", "` ` `") for line in text.splitlines()]
