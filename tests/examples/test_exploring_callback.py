"""The example of a callback, named on the command line as its users do it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollmill.cli.program import main

EXAMPLE = Path(__file__).parents[2] / "examples/exploring_callback.py"


@pytest.mark.slow
def test_it_raises_the_entropy_bonus_of_a_run_whose_return_stalls(tmp_path: Path) -> None:
    # Without learning, the return stalls at once.
    module = tmp_path / "impatient.py"
    module.write_text(
        f"import sys\nsys.path.insert(0, {str(EXAMPLE.parent)!r})\n"
        "from exploring_callback import ExploreWhenStuck\n\n\n"
        "class Impatient(ExploreWhenStuck):\n"
        "    def __init__(self):\n        super().__init__(patience=500)\n"
    )
    words = f"--callback {module}:Impatient --callback {EXAMPLE}:ExploreWhenStuck --quiet --run-dir {tmp_path / 'run'}"
    small = "--num-envs 8 --rollout-length 16 --learner.batch-size 128 --learner.learning-rate 1e-12"
    assert main(["train", "gym/CartPole-v1", *words.split(), *small.split(), "--total-steps", "8000"]) == 0
    assert "entropy_coef is 0.03" in (tmp_path / "run" / "run.log").read_text()
