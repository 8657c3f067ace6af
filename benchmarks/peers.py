"""Rollmill beside its peers, interleaved: python benchmarks/peers.py --env atari --seconds 60 --rounds 3.

Each peer runs in an environment of its own (``.venv-peers-sf``: Sample Factory; ``.venv-peers``: Stable-Baselines3 and
the CleanRL-style loop on EnvPool), made by the first run. One that does not install or fails is reported as absent,
with the reason. All have the same game, network, batch, epochs and cores, one after another, round after round, so
that a slow minute of the machine hits all of them; medians over the rounds are compared.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

_ROOT = Path(__file__).resolve().parent.parent
_PEERS = _ROOT / "benchmarks" / "peers"
_PRESETS = {"atari": "atari/breakout", "cartpole": "gym/CartPole-v1", "vizdoom": "vizdoom/defend_the_center"}
_ROLLMILL = [sys.executable, "-m", "rollmill"]
_OVERHEAD_SECONDS = 600  # starting, warming up, Rollmill's measurements besides the training, ending


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A system to compare with.

    Attributes:
        name: For the table.
        script: In ``benchmarks/peers``.
        environment: Folder of its virtual environment.
        requirements: What is installed there.
        imports: What must import for it to be there.
        envs: What it is compared on.
    """

    name: str
    script: str
    environment: str
    requirements: str
    imports: str
    envs: tuple[str, ...]

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return _ROOT / self.environment / "bin" / "python"


PEERS = (
    Peer(
        name="sample-factory",
        script="sample_factory_appo.py",
        environment=".venv-peers-sf",
        requirements="requirements-sample-factory.txt",
        imports="sample_factory, sf_examples.atari.atari_utils, ale_py, vizdoom",
        envs=("atari", "cartpole", "vizdoom"),
    ),
    Peer(
        name="stable-baselines3",
        script="stable_baselines3_ppo.py",
        environment=".venv-peers",
        requirements="requirements.txt",
        imports="stable_baselines3, ale_py, cv2",
        envs=("atari", "cartpole"),
    ),
    Peer(
        name="cleanrl-envpool",
        script="cleanrl_envpool_ppo.py",
        environment=".venv-peers",
        requirements="requirements.txt",
        imports="envpool, torch",
        envs=("atari",),
    ),
)


class AbsentError(Exception):
    """A peer cannot be measured; says why."""


def install(peer: Peer) -> None:
    """Makes the peer's virtual environment, unless it is there and whole.

    Raises:
        AbsentError: It does not install, or does not import.
    """
    check = [str(peer.python), "-c", f"import {peer.imports}"]
    if peer.python.exists() and subprocess.run(check, capture_output=True).returncode == 0:
        return
    print(f"installing {peer.name} into {peer.environment}", file=sys.stderr, flush=True)
    venv.create(_ROOT / peer.environment, with_pip=True)
    pip = [str(peer.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for command in ([*pip, "-r", str(_PEERS / peer.requirements)], check):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise AbsentError("does not install: " + _last_lines(done.stderr, 3))


def _last_lines(text: str, count: int) -> str:
    return " | ".join(line.strip() for line in text.strip().splitlines()[-count:])


def run(command: list[str], timeout_seconds: float) -> dict[str, Any]:
    """Runs a command to its end and reads the last line of its standard output as JSON.

    Raises:
        AbsentError: It failed, took too long, or did not end with JSON; the processes that it started are ended then.
    """
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, cwd=_ROOT
    )
    try:
        output, errors = process.communicate(timeout=timeout_seconds)
    except subprocess.TimeoutExpired as error:
        raise AbsentError(f"did not end within {timeout_seconds:.0f} s") from error
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what a failed or interrupted peer left behind
        process.communicate()
    lines = output.strip().splitlines()
    if process.returncode:
        raise AbsentError(f"failed ({process.returncode}): {_last_lines(output + errors, 5)}")
    try:
        result: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, json.JSONDecodeError) as error:
        raise AbsentError(f"did not end with JSON: {_last_lines(output + errors, 2)}") from error
    return result


def measure(env: str, seconds: float, rounds: int, only: tuple[str, ...]) -> dict[str, Any]:
    """Measures Rollmill and the peers in turn, ``rounds`` times, each for ``seconds``.

    Returns:
        ``systems``: name -> medians, all values, configuration and Rollmill's speed over the peer's; ``absent``:
        name -> reason.
    """
    absent: dict[str, str] = {}
    own = [*_ROLLMILL, "bench", "train", _PRESETS[env]]
    commands = {"rollmill": [*own, "--seconds", str(seconds), "--json"]}
    for peer in PEERS:
        if env in peer.envs and (not only or peer.name in only):
            try:
                install(peer)
                script = str(_PEERS / peer.script)
                commands[peer.name] = [str(peer.python), script, "--env", env, "--seconds", str(seconds)]
            except AbsentError as error:
                absent[peer.name] = str(error)
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
    for turn in range(rounds):
        for name, command in commands.items():
            if name in absent:
                continue
            try:
                results[name].append(run(command, seconds + _OVERHEAD_SECONDS))
            except AbsentError as error:
                absent[name] = str(error)
                continue
            fps = results[name][-1]["frames_per_second"]
            print(f"round {turn + 1}/{rounds}  {name:20}{fps:12,.0f} frames/s", file=sys.stderr, flush=True)
    systems = {name: _summary(runs) for name, runs in results.items() if runs and name not in absent}
    if "rollmill" in systems:
        ours = systems["rollmill"]["steps_per_second"]
        for summary in systems.values():
            summary["rollmill_over_this"] = ours / summary["steps_per_second"]
    return {
        "env": env,
        "seconds": seconds,
        "rounds": rounds,
        "cores": len(os.sched_getaffinity(0)),
        "machine": _processor(),
        "systems": systems,
        "absent": absent,
    }


def _summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "steps_per_second": median(r["steps_per_second"] for r in runs),
        "frames_per_second": median(r["frames_per_second"] for r in runs),
        "all_frames_per_second": [r["frames_per_second"] for r in runs],
        "last": runs[-1],
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def table(result: dict[str, Any]) -> str:
    """A table in Markdown."""
    lines = [
        f"{result['env']}, {result['cores']} cores of {result['machine']}, "
        f"median of {result['rounds']} rounds of {result['seconds']:.0f} s",
        "",
        "| system | frames/s | steps/s | Rollmill is faster by | precision |",
        "|---|---:|---:|---:|---|",
    ]
    for name, summary in result["systems"].items():
        ratio = f"{summary['rollmill_over_this']:.2f}x" if "rollmill_over_this" in summary else "-"
        precision = summary["last"].get("precision", summary["last"].get("fast_path", ""))
        lines.append(
            f"| {name} | {summary['frames_per_second']:,.0f} | {summary['steps_per_second']:,.0f} "
            f"| {ratio} | {precision} |"
        )
    lines += [f"| {name} | absent: {reason} | | | |" for name, reason in result["absent"].items()]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", choices=tuple(_PRESETS), default="atari")
    parser.add_argument("--seconds", type=float, default=60.0, help="length of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=(), choices=[p.name for p in PEERS], help="these peers only")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON instead of a table")
    arguments = parser.parse_args()
    result = measure(arguments.env, arguments.seconds, arguments.rounds, tuple(arguments.only))
    print(json.dumps(result) if arguments.json else table(result))
    if "rollmill" in result["absent"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
