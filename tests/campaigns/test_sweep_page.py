"""The page of a sweep, its pictures, and the result behind them."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rollmill.api import make_config
from rollmill.campaigns.jobs import CampaignError
from rollmill.campaigns.space import Choices, Range
from rollmill.campaigns.study import Trial
from rollmill.campaigns.sweep_figures import _draw_setting, draw_history, draw_settings, draw_trial_curves
from rollmill.campaigns.sweep_page import rank_correlation, write_sweep_page
from rollmill.campaigns.sweep_result import SweepResult, format_metric
from rollmill.cli.command import split_overrides
from rollmill.settings.options import parse_overrides

RATE = Range("learner.learning_rate", 1e-5, 1e-1, is_integer=False, log=True)
SIZES = Choices("model.mlp_sizes", ([8], [64, 64]))


def trial(number: int, rate: float, value: float | None, state: str = "complete", error: str = "") -> Trial:
    settings = {RATE.key: rate, SIZES.key: [8] if number % 2 else [64, 64]}
    scores = () if value is None else (value,)
    # The state is one of few words, which the type of the argument does not say.
    return Trial(number, state, settings, value, scores, {1: 0.5}, error)  # type: ignore[arg-type]


@pytest.fixture
def result(tmp_path: Path) -> SweepResult:
    trials = [
        trial(0, 0.1, 20.0),
        trial(1, 1e-2, 90.0),
        trial(2, 1e-3, 400.0),
        trial(3, 1e-4, 30.0, "pruned"),
        trial(4, 2e-3, 310.0),
        trial(5, 1e-2, None, "failed", "it broke <here>\nsecond line"),
        trial(6, 3e-3, 300.0),
    ]
    run_dirs = {}
    for each in trials:
        run_dir = tmp_path / "runs" / str(each.number)
        run_dir.mkdir(parents=True)
        rows = [{"agent_steps": 100 * n, "episode_return": n * (each.value or 1.0) / 4} for n in range(5)]
        (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        run_dirs[each.number] = (run_dir,)
    return SweepResult(
        folder=tmp_path,
        preset="gym/CartPole-v1",
        algo="ppo",
        protocol=None,
        fixed={"total_steps": 1000, "env.kwargs": {"a": 1}},
        space=(RATE, SIZES),
        metric="episode_return",
        direction="maximize",
        trials=tuple(trials),
        start=trials[0],
        run_dirs=run_dirs,
        is_complete=True,
    )


def test_the_best_is_the_largest_or_the_smallest_of_complete_trials(result: SweepResult) -> None:
    assert [each.number for each in result.ranked] == [2, 4, 6, 1, 0]
    assert result.best == result.trials[2]
    least = replace(result, direction="minimize")
    assert least.best == result.trials[0]
    assert replace(result, trials=()).best is None


def test_the_command_gives_the_settings_that_were_tried(result: SweepResult) -> None:
    words = shlex.split(result.command)
    assert words[:3] == ["rollmill", "train", "gym/CartPole-v1"]
    _, overrides = split_overrides(words[3:], {"--algo": True})
    assert parse_overrides(overrides) == {
        "total_steps": "1000",
        "env.kwargs": '{"a": 1}',
        "learner.learning_rate": "0.001",
        "model.mlp_sizes": "64,64",
    }
    assert result.best_settings["model.mlp_sizes"] == [64, 64]
    assert replace(result, fixed={"env.kwargs.level": "1"}).best_settings["env.kwargs.level"] == '"1"'
    assert replace(result, algo="impala", protocol="machado").best_settings == {
        **result.best_settings,
        "algo": "impala",
        "protocol": "machado",
    }


@pytest.mark.parametrize(
    "value",
    [None, True, 1, 1.0, 0.1, 1e-5, "1", "true", "null", "human", "None", "a b", '"q"', "--x", [1], [], [1, [2]], {}],
)
def test_the_command_gives_arguments_of_the_environment_as_they_were(value: Any, result: SweepResult) -> None:
    words = shlex.split(replace(result, fixed={"env.kwargs.x": value}).command)
    given = parse_overrides(split_overrides(words[3:], {"--algo": True})[1])
    config = make_config("gym/CartPole-v1", {"env.kwargs.x": given["env.kwargs.x"]})
    found = config.env.kwargs["x"]
    assert (found, type(found)) == (value, type(value))


def test_the_result_in_sentences_and_figures(result: SweepResult) -> None:
    text = result.describe()
    assert text.startswith("5 complete, 1 pruned, 1 failed\nbest: trial 2, episode_return 400 with")
    assert "start: episode_return 20 with" in text
    assert result.command in text
    figures = result.to_dict()
    assert figures["best"]["number"] == 2
    assert [each["state"] for each in figures["trials"]].count("pruned") == 1
    empty = replace(result, trials=(), start=None)
    assert empty.describe() == "no trial has ended; none has a value of episode_return"
    assert empty.to_dict()["command"] is None


def test_different_values_look_different(result: SweepResult) -> None:
    values = [1234.56, 1234.61, 0.00123, 0.00124, 98765.4, 1234567.125, -0.5, 0.0, 2e-9, None]
    texts = ["1,234.56", "1,234.61", "0.00123", "0.00124", "98,765.4", "1,234,567.12", "-0.5", "0", "2e-09", "-"]
    assert [format_metric(value) for value in values] == texts
    close = replace(result, trials=(trial(0, 0.1, 0.0123), trial(1, 0.2, 0.0124)), start=None)
    assert "episode_return 0.0124 with" in close.describe()
    assert "0.0123" in write_sweep_page(close).read_text()


def test_the_page_shows_trials_and_settings(result: SweepResult) -> None:
    page = write_sweep_page(result)
    text = page.read_text()
    assert page == result.folder / "report" / "report.html"
    assert "<h1>Sweep: gym/CartPole-v1</h1>" in text
    assert "it broke &lt;here&gt;" in text
    assert "second line" not in text
    assert "1e-05 to 0.1, log" in text
    assert text.count("data:image/png;base64,") == 3
    figures = json.loads((page.parent / "report.json").read_text())
    assert figures == json.loads(json.dumps(replace(result, page=page).to_dict()))
    assert "interrupted" not in text
    assert "The sweep was interrupted" in write_sweep_page(replace(result, is_complete=False)).read_text()


def test_a_folder_that_cannot_be_written_is_named(result: SweepResult) -> None:
    (result.folder / "report").touch()
    with pytest.raises(CampaignError, match="the page cannot be written to"):
        write_sweep_page(result)


def test_rank_correlations(result: SweepResult) -> None:
    # Rates 0.1, 0.01, 0.001, 0.002, 0.003 have values 20, 90, 400, 310, 300.
    assert rank_correlation(result, RATE) == pytest.approx(-1.0)
    assert rank_correlation(result, SIZES) is None
    assert rank_correlation(replace(result, trials=result.trials[:4]), RATE) is None
    tied = [replace(each, settings={RATE.key: 0.1}) for each in result.trials]
    assert rank_correlation(replace(result, trials=tuple(tied)), RATE) is None


def test_rank_correlations_share_the_ranks_of_ties(result: SweepResult) -> None:
    values = [1.0, 2.0, 2.0, 4.0, 3.0]
    rates = [1e-4, 1e-4, 1e-3, 1e-2, 1e-2]
    trials = tuple(trial(n, rate, value) for n, (rate, value) in enumerate(zip(rates, values, strict=True)))
    expected = np.corrcoef([0.5, 0.5, 2.0, 3.5, 3.5], [0.0, 1.5, 1.5, 4.0, 3.0])[0, 1]
    assert rank_correlation(replace(result, trials=trials), RATE) == pytest.approx(expected)


def test_pictures_show_something_for_one_trial_and_for_many(result: SweepResult, tmp_path: Path) -> None:
    single = replace(result, trials=result.trials[2:3], start=None)
    for number, draw in enumerate((draw_history, draw_settings, draw_trial_curves)):
        many, one = draw(result, tmp_path / f"{number}.png"), draw(single, tmp_path / f"{number}-one.png")
        pixels = [np.asarray(Image.open(path).convert("L")) for path in (many, one)]
        assert all(np.ptp(image) > 100 for image in pixels)
        assert not np.array_equal(*pixels)


def test_a_logarithmic_axis_covers_the_range_and_labels_powers_of_ten(result: SweepResult) -> None:
    from matplotlib.figure import Figure

    wide, narrow = (Figure().subplots() for _ in range(2))
    _draw_setting(wide, result, RATE)
    assert wide.get_xlim() == pytest.approx((1e-5 / 1.2, 0.12))
    assert wide.xaxis.get_minor_formatter()(2e-3) == ""
    _draw_setting(narrow, result, replace(RATE, low=2e-3, high=8e-3))
    assert narrow.xaxis.get_minor_formatter()(4e-3)
