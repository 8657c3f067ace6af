"""The result of tuning as text and as files."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.tuning.straight_curves import CURVES, line

from rollmill.runtime.signatures import Verdict
from rollmill.runtime.signed_files import read_signed
from rollmill.tuning.curves import Curve, Curves
from rollmill.tuning.explain import Change
from rollmill.tuning.model import Allocation
from rollmill.tuning.result import TUNED_FILE
from rollmill.tuning.search import Candidate
from rollmill.tuning.settings import SettingsFileError
from rollmill.tuning.tune import tune

pytestmark = pytest.mark.usefixtures("sixteen_cores")


def test_the_summary_has_a_sentence_for_each_fact() -> None:
    tuning = tune("gym/CartPole-v1", curves=CURVES)
    measured = replace(tuning, predicted=53_000.0, steps_per_second=34_000.0, gain=1.21, notes=("it was dark",))
    assert measured.summary().splitlines()[1:3] == [
        "The model predicts 53,000 agent steps/s; 34,000 were measured, because processes also wait for each other "
        "and for a free core.",
        "That is 1.21 times the speed of the preset's own settings.",
    ]
    assert measured.summary().endswith("\nNote: it was dark.")
    near = replace(measured, predicted=35_000.0, allocation=tuning.preset)
    assert near.summary().splitlines()[1:3] == [
        "34,000 agent steps/s were measured; the model predicts 35,000.",
        "Nothing that was tried is clearly faster than the preset's own settings.",
    ]
    elsewhere = replace(measured, gain=None)
    assert "The model predicts 34,000 agent steps/s there, from what was measured on this machine." in (
        elsewhere.summary().splitlines()
    )
    assert measured.describe().startswith(measured.summary())


def test_both_sides_of_the_equation_are_shown() -> None:
    slow = Curves(cores=8, actors=line(8, 1000.0), learners=Curve((1.0,), (0.5,)))
    tuning = tune("gym/CartPole-v1", algo="dqn", curves=slow)
    learned = tuning.update_interval * 0.5
    assert f"u f_l(x_l) = {learned:,.0f} agent steps/s" in tuning.describe()
    assert "Learning limits the speed" in tuning.describe()


def test_the_largest_change_is_worth_a_sentence_from_five_per_cent_on() -> None:
    tuning = tune("gym/CartPole-v1", curves=CURVES)
    few = Change("one core more", 0.049), Change("two cores more", -0.2)
    assert "By the model" not in replace(tuning, changes=few).summary()
    more = (*few, Change("a faster environment", 0.125))
    summary = replace(tuning, changes=more).summary()
    assert "By the model, a faster environment would make it 12% faster." in summary.splitlines()
    details = replace(tuning, changes=more).describe()
    assert re.search(r"^  one core more +\+5%$", details, re.MULTILINE)
    assert re.search(r"^  two cores more +-20%$", details, re.MULTILINE)


def test_one_of_a_thing_is_in_the_singular() -> None:
    tuning = tune("gym/CartPole-v1", curves=CURVES)
    one = replace(tuning, allocation=Allocation(1, 1, 1, 1, 1), curves=replace(CURVES, cores=1))
    assert one.summary().splitlines()[0] == (
        "gym/CartPole-v1 on 1 core: the fastest settings found are 1 rollout worker, 1 policy worker, 1 core for "
        "learning, and 1 environment in 1 group."
    )
    many = replace(tuning, allocation=Allocation(2, 3, 4, 1024, 512))
    assert "2 rollout workers, 3 policy workers, 4 cores for learning, and 1,024 environments in 2 groups." in (
        many.summary()
    )


def test_where_collecting_and_learning_take_turns_there_is_no_solution_to_describe() -> None:
    tuning = replace(tune("gym/CartPole-v1", curves=CURVES), solution=None, bounds="most: 7")
    assert "\nmost: 7\ncollecting and learning take turns on all cores, so there is nothing to" in tuning.describe()
    assert tuning.to_dict()["solution"] is None


def test_candidates_are_listed_with_their_speed_over_the_presets() -> None:
    tuning = tune("gym/CartPole-v1", curves=CURVES)
    allocation = Allocation(2, 1, 1, 64, 8)
    tried = replace(tuning, tried=(Candidate(allocation, 1.234),))
    line = "  1.23  64 environments in 8 groups of 8 on 2 rollout worker(s), 1 policy worker(s), 1 core(s) for learning"
    assert line in tried.describe().splitlines()
    assert tried.to_dict()["tried"] == [{"over_preset": 1.234, **allocation._asdict()}]


def test_files_hold_signed_settings_the_curves_and_the_report(tmp_path: Path) -> None:
    tuning = tune("gym/CartPole-v1", curves=CURVES, num_envs=64)
    assert tuning.write(tmp_path / "a" / "b") == tmp_path / "a" / "b" / TUNED_FILE
    folder = tmp_path / "a" / "b"
    settings, verdict = read_signed(folder / TUNED_FILE)
    assert settings == json.loads(json.dumps(tuning.settings))
    assert settings["num_envs"] == 64
    assert verdict is Verdict.VALID
    assert Curves.read(folder / "curves.json") == CURVES
    assert (folder / "tuning.txt").read_text() == tuning.describe() + "\n"
    assert (folder / "tuning.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads(json.dumps(tuning.to_dict()))["settings"] == settings


def test_a_result_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    tuning = tune("gym/CartPole-v1", curves=CURVES)
    (tmp_path / TUNED_FILE).mkdir()
    with pytest.raises(SettingsFileError, match=r"cannot be written to .* \(Is a directory\); it was:\n") as caught:
        tuning.write(tmp_path)
    assert str(caught.value).endswith(tuning.summary())
    assert [path.name for path in tmp_path.iterdir()] == [TUNED_FILE]


def test_without_matplotlib_there_is_no_picture_and_a_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    said: list[str] = []
    tune("gym/CartPole-v1", curves=CURVES, output=tmp_path, say=said.append)
    assert said[0] == "tuning.png is not drawn, because matplotlib is not installed: pip install matplotlib"
    assert {path.name for path in tmp_path.iterdir()} == {TUNED_FILE, "curves.json", "tuning.txt"}
