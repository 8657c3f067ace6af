"""Which metrics a sweep accepts: by name, and by what finished runs have reported."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rollmill.api import make_config
from rollmill.campaigns.jobs import CampaignError
from rollmill.campaigns.sweep_metric import check_has_metric, check_metric
from rollmill.storage.population_config import PopulationConfig

CONFIG = make_config("gym/CartPole-v1")
ROW = {"agent_steps": 10, "episode_return": None, "env/caught": 0.5, "env/missed": 1, "policy_lag_histogram": [1, 2]}


def run_with(folder: Path, name: str, *rows: dict[str, object]) -> Path:
    run_dir = folder / name
    run_dir.mkdir()
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run_dir


@pytest.mark.parametrize(
    "metric",
    ["episode_return", "env/caught", "agent/red_0/episode_return", "win_rate/a", "pbt/learner.discount", "loss/mine"],
)
def test_names_that_a_run_may_have(metric: str) -> None:
    check_metric(metric, CONFIG)


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("episode_retrun", "did you mean episode_return"),
        ("environment/caught", r"docs/metrics\.md lists all\."),
        ("agent/red_0/return", r"did you mean agent/NAME/episode_return"),
        ("env/", "no key of metrics.jsonl"),
        ("share/learner/lerning", "did you mean share/learner/learning"),
    ],
)
def test_other_names_are_refused(metric: str, message: str) -> None:
    with pytest.raises(CampaignError, match=message):
        check_metric(metric, CONFIG)


def test_evaluations_are_those_of_a_policy() -> None:
    two = replace(CONFIG, population=PopulationConfig(policies=("hunter", "prey")), eval_every=100)
    check_metric("policy/prey/evaluation/mean_return", two)
    check_metric("evaluation/mean_return", replace(CONFIG, eval_every=100))
    for metric in ("evaluation/mean_return", "policy/other/evaluation/mean_return"):
        allowed = "give policy/hunter/evaluation/mean_return or policy/prey/evaluation/mean_return"
        with pytest.raises(CampaignError, match=allowed):
            check_metric(metric, two)
    with pytest.raises(CampaignError, match="evaluations have policy/prey/evaluation/episodes, "):
        check_metric("policy/prey/evaluation/x", two)
    with pytest.raises(CampaignError, match="evaluations have evaluation/episodes, "):
        check_metric("evaluation/policies", replace(CONFIG, eval_every=100))
    with pytest.raises(CampaignError, match="the run has one policy; give evaluation/mean_return"):
        check_metric("policy/prey/evaluation/mean_return", CONFIG)


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("env/caugt", r"^metric='env/caugt': a has ended without it; did you mean env/caught\? Repeat .* --metric KEY"),
        ("env/x", r"it has env/caught, env/missed\. Repeat"),
        ("loss/x", r"its metrics\.jsonl has what could be compared"),
        ("policy_lag_histogram", "ended without it"),
    ],
)
def test_a_finished_run_without_the_metric_is_refused(tmp_path: Path, metric: str, message: str) -> None:
    with pytest.raises(CampaignError, match=message):
        check_has_metric([run_with(tmp_path, "a", {"agent_steps": 5}, ROW)], metric)


def test_few_keys_are_named(tmp_path: Path) -> None:
    run_dir = run_with(tmp_path, "a", {"agent_steps": 5, **{f"env/{name}": 1 for name in "abcdefg"}})
    with pytest.raises(CampaignError, match=r"it has env/a, env/b, env/c, env/d, env/e and 2 more\."):
        check_has_metric([run_dir], "env/something")


def test_one_run_with_the_metric_or_none_with_metrics_is_enough(tmp_path: Path) -> None:
    runs = [run_with(tmp_path, "a", {"agent_steps": 10}), run_with(tmp_path, "b", ROW)]
    check_has_metric(runs, "env/caught")
    check_has_metric(runs, "episode_return")  # It is null, because no episode has ended.
    check_has_metric([run_with(tmp_path, "c")], "env/caught")
    check_has_metric([], "env/caught")
    with pytest.raises(CampaignError, match="all 2 finished runs have ended without it"):
        check_has_metric(runs, "env/caugt")
