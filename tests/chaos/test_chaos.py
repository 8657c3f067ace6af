"""Processes of real runs killed at random moments, again and again: the run ends, says why, and leaves nothing.

Rounds take turns: async, lockstep, lockstep on two ranks of torchrun, replay with two learners, three policies,
self-play of two policies and their past selves in lockstep, two tasks learned by a population whose members replace
each other, and matches of Doom. ``make chaos`` runs this; ``ROLLMILL_CHAOS_ROUNDS`` changes how often (50),
``ROLLMILL_CHAOS_SEED`` repeats a sequence.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from rollmill.learning.in_flight import InFlight
from rollmill.storage.checkpoint_file import read_checkpoint
from rollmill.storage.checkpoints import CheckpointConfig, CheckpointStore

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3600)]

ROUNDS = int(os.environ.get("ROLLMILL_CHAOS_ROUNDS", "50"))
ENVIRONMENTS = Path(__file__).parent.parent / "regimes"
LONGEST_END_S = 30.0
SETTINGS = """
    --num-envs 8 --rollout-length 8 --learner.precision fp32 --learner.channels-last false
    --inference.precision fp32 --rollout.num-workers 2 --report-every-s 0.3
"""
ON_POLICY = "--learner.epochs 1 --learner.minibatches 1 --learner.micro-batch 32"
LOCKSTEP = f"""
    {ON_POLICY} --regime lockstep --envs-per-group 2 --checkpoint.every-steps 256 --distributed.timeout-s 10
"""
REGIMES = {
    "async": f"{ON_POLICY} --learner.batch-size 128 --checkpoint.every-s 1",
    "lockstep": f"{LOCKSTEP} --lag 1",
    "ranks": f"{LOCKSTEP} --lag 2",
    "replay": "--algo dqn --learner.batch-size 32 --learner.num-learners 2 --replay.min-size 100 --replay.capacity 4096"
    " --replay.storage file --model.mlp-sizes 16 --checkpoint.every-s 1",
    "policies": f"{ON_POLICY} --learner.batch-size 128 --checkpoint.every-s 1 --policies 3 --assignment random",
    "self-play": f"{LOCKSTEP} --lag 1 --policies 2 --population.snapshots 3 --population.snapshot-every 100",
    "tasks": f"{ON_POLICY} --learner.batch-size 128 --checkpoint.every-s 1 --policies 2 --pbt --pbt.every 256 "
    "--pbt.window 4",
    "matches": f"{ON_POLICY} --learner.batch-size 32 --checkpoint.every-s 1 --num-envs 2 --model.core-size 16",
}
WALK = ["test/walk", "--import", "faulty_envs", "--env.kwargs", json.dumps({"child": True})]
TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m"]


def living(token: str) -> dict[int, str]:
    """Process id -> command line of every process that carries the token in its environment."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            if state not in "ZX" and token.encode() in (entry / "environ").read_bytes():
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return found


def start(run_dir: Path, token: str, preset: list[str], regime: str) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "ROLLMILL_RUN_ID": token,
        "PYTHONPATH": str(ENVIRONMENTS),
        # A wait that takes for ever would be found by the time limit below, with all stacks.
        "PYTHONFAULTHANDLER": "1",
    }
    # Where this runs in the background of a script, SIGINT is ignored, and what is started here would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    command = [sys.executable, "-m", *(TORCHRUN if regime == "ranks" else ()), "rollmill", "train", *preset]
    command += ["--run-dir", str(run_dir), "--total-steps", "1e12", *SETTINGS.split(), *REGIMES[regime].split()]
    with (run_dir.parent / f"{run_dir.name}.out").open("wb") as output:
        return subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT, cwd=run_dir.parent)


def parent_of(pid: int) -> int | None:
    """None where the process has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def choose_victim(dice: random.Random, launched: int, token: str, kind: str, regime: str) -> int | None:
    """A process of that kind: what was launched, a main process or its helpers, a child of the run, or a simulator."""
    others = {pid: line for pid, line in living(token).items() if pid != launched}
    if kind == "launched":
        return launched
    mains = [launched]
    if regime == "ranks":
        mains = [pid for pid, line in others.items() if parent_of(pid) == launched and "-m rollmill" in line]
    servers = [pid for pid, line in others.items() if "forkserver" in line and parent_of(pid) in mains]
    if kind == "main":
        chosen = mains
    elif kind == "fork server":
        chosen = servers
    elif kind == "simulator":
        chosen = [pid for pid, line in others.items() if line.startswith("sleep ") or "vizdoom" in line]
    elif kind == "watchdog":
        chosen = [pid for pid, line in others.items() if "sweep.py" in line]
    else:
        # Not a simulator that was forked a moment ago and still looks like its rollout worker: VizDoom's library
        # crashes when its engine dies at birth, and the run then names that.
        chosen = [pid for pid, line in others.items() if "forkserver" in line and parent_of(pid) in servers]
    return dice.choice(sorted(chosen)) if chosen else None


def kill_one(dice: random.Random, launched: int, token: str, kind: str, regime: str) -> int:
    """Kill a process of that kind, or what was launched if there is none yet; returns its id."""
    while True:
        victim = choose_victim(dice, launched, token, kind, regime) or launched
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            # It ended after it was chosen, as the simulator of an environment that is only described. What was launched
            # is always found, because it is reaped only at the end of the test.
            continue
        return victim


@pytest.mark.parametrize("round_number", range(ROUNDS))
def test_a_run_killed_at_a_random_moment_leaves_nothing(round_number: int, tmp_path: Path) -> None:
    dice = random.Random(int(os.environ.get("ROLLMILL_CHAOS_SEED", "1")) * 10_000 + round_number)
    token, run_dir, shared = uuid.uuid4().hex, tmp_path / "run", set(os.listdir("/dev/shm"))
    preset = WALK
    if round_number % 5 == 4:
        pytest.importorskip("vizdoom")
        preset = ["vizdoom/basic"]
    regime = list(REGIMES)[round_number % len(REGIMES)]
    if regime == "self-play":
        preset = ["envpool/ConnectFour-v1"]
    if regime == "tasks":
        preset = ["--tasks", "test/walk,test/other_walk", *WALK[1:]]
    if regime == "matches":
        pytest.importorskip("vizdoom")
        preset = ["vizdoom/duel"]
    helpers, signals = ["fork server", "watchdog"], ["SIGINT", "SIGTERM"]
    action = dice.choice(["launched", "main", "child", "child", "child", *helpers, *signals, "simulator"])
    process = start(run_dir, token, preset, regime)
    try:
        time.sleep(dice.uniform(0.3, 20.0 if regime == "ranks" else 12.0))
        if action.startswith("SIG"):
            os.kill(process.pid, getattr(signal, action))
        else:
            victim = kill_one(dice, process.pid, token, action, regime)
            if victim == process.pid:
                action = "launched"
        if action == "simulator" and preset[0] != "vizdoom/basic":
            # No process waits for this environment's sleeping child: the run continues, and is ended as by a user.
            time.sleep(1.0)
            assert process.poll() is None
            os.kill(process.pid, signal.SIGTERM)
        begun = time.monotonic()
        code = process.wait(timeout=LONGEST_END_S)
        ended = time.monotonic() - begun
        output = (tmp_path / "run.out").read_text(errors="replace")
        # A rank whose torchrun was killed while it was being born looks for the others for so long.
        is_young = regime == "ranks" and action == "launched" and not (run_dir / "config.json").exists()
        deadline = time.monotonic() + (60.0 if is_young else 15.0)
        while living(token) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not living(token), f"{action}: still there"
        assert set(os.listdir("/dev/shm")) <= shared, f"{action}: shared memory left"
        assert code != 2, f"the settings are refused: {output}"
        if action == "launched":
            assert code == -signal.SIGKILL
        elif action in ("main", "child", "fork server", "watchdog"):
            assert code != 0
            assert "SIGKILL" in output, output[-2000:]
        assert ended < LONGEST_END_S
    finally:
        for pid in living(token):
            os.kill(pid, signal.SIGKILL)
        process.wait()
    folders = sorted((run_dir / "policies").glob("*")) or [run_dir]
    stores = [CheckpointStore(folder / "checkpoints", CheckpointConfig()) for folder in folders]
    for store in stores:
        if store.paths():
            assert store.load_latest().state["counters"]["agent_steps"] >= 0
    store = stores[-1]  # With the groups' states, and saved last.
    if regime in ("lockstep", "ranks", "self-play") and any("_end" not in path.name for path in store.paths()):
        state = store.load_latest(to_resume=True).state
        found = InFlight.unpack(state)
        assert len(found.groups) == (4 if state["counters"]["batches"] else 0)
        for other in stores:
            states = [read_checkpoint(path, "cpu")[1] for path in other.paths(to_resume=True)]
            assert found.iteration in [InFlight.unpack(state).iteration for state in states]
