"""The command line: what it accepts, what it rejects, and its messages."""

from __future__ import annotations

import errno
import json
import operator
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rollmill
from rollmill.cli import envs, main, program
from rollmill.cli.settings_help import OFF_POLICY, ON_POLICY
from rollmill.envs import registry
from rollmill.envs.config import EnvConfig
from rollmill.models.config import ModelConfig
from rollmill.reporting.metrics import MetricsWriter
from rollmill.settings.config import Config
from rollmill.settings.option_list import list_options
from rollmill.settings.options import to_json

COMMANDS = (
    "train",
    "tune",
    "sweep",
    "suite",
    "eval",
    "watch",
    "plot",
    "report",
    "verify",
    "bench",
    "envs",
    "doctor",
    "export",
)
WITH_SETTINGS = ("train", "tune", "sweep", "suite", "verify", "bench")

FAILING_ENV = """
import gymnasium as gym, numpy as np
from rollmill import register_env

class Fails(gym.Env):
    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)
    def __init__(self, after=3):
        self.after = after
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}
    def step(self, action):
        self.steps += 1
        if self.steps > self.after:
            raise ZeroDivisionError("the simulator divided by zero")
        return np.zeros(1, np.float32), 1.0, self.steps == 5, False, {}

register_env("cli/fails", Fails)
"""


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # main adds the current directory


def make_run(run_dir: Path, env: EnvConfig) -> Path:
    """What eval reads of a run: configuration and checkpoint."""
    import torch

    from rollmill.envs.factory import probe
    from rollmill.models.registry import make_model
    from rollmill.runtime.signed_files import signed
    from rollmill.storage.checkpoints import CheckpointConfig, CheckpointStore

    run_dir.mkdir()
    content = signed({**to_json(env), **to_json(ModelConfig())})
    (run_dir / "config.json").write_text(json.dumps(content))
    spec = probe(env)
    torch.manual_seed(0)
    state = {"model": make_model(spec.observation, spec.action, ModelConfig()).state_dict()}
    CheckpointStore(run_dir / "checkpoints", CheckpointConfig()).save(
        {**state, "counters": {"agent_steps": 7}}, agent_steps=7
    )
    return run_dir


@pytest.mark.slow
@pytest.mark.parametrize(
    "argv", [["--help"], ["train", "--help-all"], *[[command, "--help"] for command in COMMANDS]], ids=" ".join
)
def test_help_is_useful_and_loads_neither_torch_nor_gymnasium(argv: list[str]) -> None:
    code = (
        "import sys; from rollmill.cli import main\n"
        f"code = main({argv!r})\n"
        "heavy = {'torch', 'gymnasium', 'matplotlib', 'tensorboard'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for word in COMMANDS if argv == ["--help"] else [argv[0], "--help", "examples:", f"rollmill {argv[0]} "]:
        assert word in done.stdout
    if argv[0] in WITH_SETTINGS:
        settings = set(re.findall(r"^  --([\w.-]+)", done.stdout, flags=re.MULTILINE))
        settings &= {option.key.replace("_", "-") for option in list_options(Config)} - {"total-steps", "seed"}
        if argv[1] == "--help":
            assert len(settings) == 17
            assert "learner.learning-rate" in settings
        else:
            assert len(settings) > 150
            assert "--learner.precision" in done.stdout


@pytest.mark.parametrize("shown", [ON_POLICY, OFF_POLICY])
def test_help_names_the_settings_that_matter(shown: dict[str, str]) -> None:
    assert len(shown) == 17
    assert shown.keys() <= {option.key for option in list_options(Config)}


def test_the_module_runs_as_a_program() -> None:
    done = subprocess.run([sys.executable, "-m", "rollmill", "--version"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stdout.strip() == f"rollmill {rollmill.__version__}"


def test_without_a_command_there_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "commands:" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("trian gym/CartPole-v1", "unknown command 'trian'; did you mean train?"),
        ("zzz", "choose one of train, tune, sweep, suite, eval, watch"),
        ("eval runs/a --fast", "rollmill eval has no option --fast; rollmill eval --help lists them"),
        (
            "eval runs/a --env.max_episode_steps=9",
            "no option --env.max_episode_steps=9; did you mean --max-episode-",
        ),
        ("eval runs/a", "runs/a is not a run"),
        ("watch runs/a", "runs/a is not a run"),
        ("eval", "required: RUN_DIR"),
        ("eval runs/a --episodes 0", "give at least 1"),
        ("eval runs/a --seed -1", "give 0 or more"),
        ("train gym/CartPole-v1 --max-seconds nan", "max_seconds=nan: give a finite number above 0"),
        ("train gym/CartPole-v1 --report-every-s inf", "report_every_s=inf: give a finite number above 0"),
        (
            "train gym/CartPole-v1 --rollout.step-timeout-s nan",
            "step_timeout_s=nan: give a finite number above 0",
        ),
        ("train gym/CartPole-v1 --rollout-length 100000", "use 100000, or another rollout_length"),
        ("train a --env.imports no_such_module", "--import no_such_module (env.imports): there is no such module in"),
        ("eval runs/a --episodes some", "'some' is not a whole number"),
        ("bench sim --seconds -1", "is not a positive number of seconds"),
        ("bench sim --seconds soon", "is not a positive number of seconds"),
        ("bench everything", "invalid choice: 'everything'"),
        ("bench ring --num-envs 3", "the benchmark 'ring' takes no settings; given: num_envs"),
        (
            "bench sampler gym/CartPole-v1 --regime replay --off-policy.algorithm dqn",
            "regime='replay': the benchmark of the sampler does not",
        ),
        ("envs nintendo", "unknown family 'nintendo'; choose one of "),
        ("train", "no preset was given"),
        ("train --resume", "resume without run_dir: give the directory"),
        ("train --resume runs/a", "--resume runs/a is not a run: there is no such directory; give the directory"),
        ("train --resume gym/CartPole-v1", "--resume gym/CartPole-v1 is not a run: there is no such directory"),
        ("train gym/CartPole-v1 --resume runs/a", "--resume runs/a is not a run: there is no such directory"),
        ("train x --resume y --run-dir runs/a", "x and --resume y with --run-dir runs/a: omit one of them"),
        ("train gym/CartPole-v1 stray", "unrecognized arguments: stray"),
        ("train gym/CartPole-v1 --learner.precission fp32", "did you mean learner.precision?"),
        # Names of arguments of the functions that the commands call.
        ("train gym/CartPole-v1 --callbacks x", "train has no option and no setting --callbacks; did you mean --callb"),
        ("tune gym/CartPole-v1 --say x", "unknown setting 'say'"),
        ("sweep gym/CartPole-v1 --space x --seeds 3", "no setting --seeds; did you mean --seeds-per-trial?"),
        ("suite classic --name x", "env.name=x: a suite says what is trained"),
        ("train gym/CartPole-v1 --num-envs few", "num_envs: 'few' was given; allowed is an integer"),
        ("train gym/CartPole-v1 --total-steps 1.5", "is not a whole number such as 3000000 or 3e6"),
        ("train gym/CartPole-v1 --total_steps 1.5", "is not a whole number such as 3000000 or 3e6"),
        ("train --preset gym/CartPole-v1", "--preset gym/CartPole-v1: the preset is not a setting"),
        ("bench sim --preset x", "--preset x: the preset is not a setting"),
        ("train gym/CartPole-v1 --advantage vtrace --compile true", "learner.compile=True with learner.advantage="),
        ("train gym/CartPole-v1 --model.core gru --learner.compile true", "learner.compile=True with model.core='gru'"),
        ("train gym/CartPole-v1 --run_dir /dev/null", "a file with this name exists"),
        ("train gym/CartPole-v1 --run-dir /dev/null/a", "directory /dev/null/a cannot be created (Not a directory)"),
        ("train gym/CartPole-v1 --run-dir /proc/a", "in a place where you may write"),
        ("train gym/CartPole-v1 --run-dir /proc/self", "/proc/self/.lock cannot be written"),
        ("train --resume --run-dir /dev/null", "/dev/null is not a run: there is no such directory"),
        ("train gym/CartPole-v1 --total-steps 0", "total_steps=0: give an integer of at least 1"),
        ("train gym/CartPool-v1", "did you mean 'CartPole-v1'"),
        ("train gym/CartPole-v1 --resume", "resume"),
        ("train gym/CartPole-v1 --resume --run-dir runs/a", "runs/a is not a run: there is no such directory"),
        ("train --resume /", "--resume / is not a run: there is no config.json in it"),
        ("train a --import no_such_module", "--import no_such_module (env.imports): there is no such module in"),
        (
            "train gym/CartPole-v1 --env.wrappers no_such.Mine",
            "env.wrappers no_such: there is no such module in",
        ),
        ("train a --callback no_such:Mine", "--callback no_such: there is no such module in"),
        ("train a --callback json", "--callback json: give module:Class or path/to/file.py:Class"),
        ("train a --callback json:Mine", "'Mine' of json is nothing, not a callback; it has no class derived from"),
        ("train a --callback no_such.py:Mine", "--callback no_such.py: there is no such file"),
        (
            "train a --callback demanding.py:Demanding",
            "made without arguments, but its constructor needs some (missing",
        ),
        (
            "train a --import leaving.py",
            "it ends the program when it is imported (sys.exit('set MY_TOKEN')); put what it",
        ),
        ("eval hf://me/it", "hf://me/it is an address on the Hugging Face Hub, which only rollmill.load takes"),
        ("plot runs/a", "runs/a"),
    ],
)
def test_wrong_usage_is_one_message_and_exit_code_2(
    argv: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "demanding.py").write_text(
        "import rollmill\nclass Demanding(rollmill.Callback):\n    def __init__(self, goal):\n        pass\n"
    )
    (tmp_path / "leaving.py").write_text("import sys\nsys.exit('set MY_TOKEN')\n")
    assert main(argv.split()) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_help_with_a_preset_shows_its_values(capsys: pytest.CaptureFixture[str]) -> None:
    def epochs(*argv: str) -> str:
        said = []
        for asked in ("--help", "--help-all"):
            assert main([*argv, asked]) == 0
            found = re.search(r"--learner\.epochs +(?:an integer[a-z ]*)?\[?(\d+)", capsys.readouterr().out)
            assert found is not None
            said.append(found[1])
        assert said[0] == said[1]
        return said[0]

    assert epochs("train") == "1"
    assert main(["train", "--help-all"]) == 0
    assert "--preset" not in capsys.readouterr().out  # which would be refused
    assert epochs("train", "gym/CartPole-v1") == "4"
    assert epochs("train", "gym/CartPole-v1", "--learner.epochs", "7") == "7"
    assert epochs("bench", "train", "gym/CartPole-v1") == "4"
    assert main(["train", "gym/CartPool-v1", "--help"]) == 2
    assert "did you mean 'CartPole-v1'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", ["sweep --trials 5", "tune --max-seconds 1e3", "verify --lag 2", "bench train --json"]
)
def test_help_needs_no_preset(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words.split(), "--help"]) == 0
    shown = capsys.readouterr()
    assert "the settings that matter most, as --KEY VALUE, with their defaults" in shown.out
    assert not shown.err


def test_help_with_an_algorithm_shows_its_values(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "gym/Pendulum-v1", "--algo", "sac", "--replay.min-size", "55", "--help"]) == 0
    said = capsys.readouterr().out
    assert "--regime replay " in said
    assert "--replay.min-size 55 " in said
    assert "--learner.clip-range" not in said
    assert main(["train", "gym/Pendulum-v1", "--algo", "nosuch", "--help"]) == 2
    assert "algo='nosuch': choose one of ppo" in capsys.readouterr().err


def test_help_with_a_long_value_keeps_its_words(capsys: pytest.CaptureFixture[str]) -> None:
    path = f"runs/{'a' * 100}.pt"
    assert main(["train", "gym/CartPole-v1", "--init-from", path, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = lines.index(f"  --init-from {path}")
    assert lines[at + 1].split()[:3] == ["run", "directory", "or"]
    assert main(["suite", "--help"]) == 0
    assert "PRESET before --help" not in capsys.readouterr().out


def test_a_file_that_may_not_be_read_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "runs/x/config.json")

    monkeypatch.setattr(envs, "run", refuse)
    monkeypatch.setattr(program, "is_of_user_code", lambda _: False)  # This file is the user's.
    assert main(["envs"]) == 1
    assert "permission denied for runs/x/config.json: change the permissions" in capsys.readouterr().err


def test_defects_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envs, "run", operator.add)  # raises without a frame of the user's
    with pytest.raises(TypeError, match="unsupported operand"):
        main(["envs"])


def test_a_missing_dependency_of_a_module_is_told_from_the_module_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "defective_module.py").write_text("import a_missing_dependency")
    assert main(["train", "gym/CartPole-v1", "--import", "defective_module"]) == 1
    error = capsys.readouterr().err
    assert "ModuleNotFoundError: No module named 'a_missing_dependency'" in error
    assert "rollmill/cli/" not in error


def test_ctrl_c_is_no_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "interrupting_module.py").write_text("raise KeyboardInterrupt")
    assert main(["train", "gym/CartPole-v1", "--import", "interrupting_module"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_reader_that_leaves_is_no_traceback() -> None:
    command = f"{sys.executable} -m rollmill envs | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("atari (")
    assert done.stderr == ""


@pytest.mark.parametrize("words", ["--version", "train --help", "envs"])
def test_a_reader_that_reads_nothing_is_no_failure(words: str) -> None:
    command = f"{sys.executable} -m rollmill {words} | true; echo ${{PIPESTATUS[0]}}"
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=variables, check=False)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_standard_output_may_be_closed() -> None:
    command = f"{sys.executable} -m rollmill envs >&-"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_another_pipe_that_breaks_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "breaking_module.py").write_text("raise BrokenPipeError(32, 'Broken pipe')")
    assert main(["train", "gym/CartPole-v1", "--import", "breaking_module"]) == 1
    assert capsys.readouterr().err == "rollmill: [Errno 32] Broken pipe\n"


def test_a_path_with_bytes_that_are_not_utf_8_is_printed(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path / "a") as writer:
        writer.write({"agent_steps": 1, "time_s": 1.0, "episode_return": 2.0})
    command = [sys.executable, "-m", "rollmill", "plot", "a", "--output", b"pict\xffure.png"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"pict\xffure.png\n", b"")


# ----------------------------------------------------------------------------------------------------------- commands


def test_envs_lists_presets_by_family(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs"]) == 0
    everything = capsys.readouterr().out.splitlines()
    assert "  atari/pong" in everything
    assert any(line.startswith("vizdoom (") for line in everything)
    assert main(["envs", "minigrid"]) == 0
    some = capsys.readouterr().out.splitlines()
    assert all(line.startswith("  minigrid/") for line in some[1:])
    assert some[0] == f"minigrid ({len(some) - 1})"


def test_a_failing_environment_shows_its_own_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing_env_module.py").write_text(FAILING_ENV)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_registered", {})  # what it registers is for this test alone
    env = EnvConfig(name="cli/fails", imports=("failing_env_module",), kwargs={"after": 3})
    assert main(["eval", str(make_run(tmp_path / "run", env)), "--episodes", "1"]) == 1
    error = capsys.readouterr().err
    assert "ZeroDivisionError: the simulator divided by zero" in error
    assert 'raise ZeroDivisionError("the simulator divided by zero")' in error
    last = error.splitlines()[-1]
    assert last.startswith("rollmill: ")
    assert "cli/fails" in last
    assert "rollmill/cli/" not in error


@pytest.mark.parametrize("words", ["envs gym", "train gym/CartPole-v1 --help", "train of_nobody:Env --num-envs few"])
def test_a_program_that_calls_main_starts_interpreters_as_before(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    main(words.split())
    assert "PYTHONSAFEPATH" not in os.environ


def test_a_module_that_cannot_be_imported_shows_its_own_frames_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "faulty_maze.py").write_text("import gymnasium\n\nlevels = {}\nfirst = levels['first']\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["train", "faulty_maze:Maze"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("Traceback")
    assert "faulty_maze.py" in lines[1]
    assert lines[-2:] == [
        "KeyError: 'first'",
        "rollmill: the error above was raised by code outside of Rollmill: correct it there",
    ]
