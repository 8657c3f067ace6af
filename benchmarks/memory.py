"""What an environment costs in memory and file descriptors, up to thousands of them on one machine.

    python benchmarks/memory.py atari/breakout --num-envs 64 512 3000

Starts the whole run (without a limit on time it would train for ever; it is stopped once batches flow) and reads /proc:
memory and descriptors of the run's processes, of the fork server and of what they started, and the shared arena. Pages
that the processes share with the fork server are counted once.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
import uuid
from pathlib import Path

import rollmill
from rollmill.regimes.running import run
from rollmill.runtime.fork_server import ensure_fork_server
from rollmill.runtime.sweep import members


def usage(pid: int) -> tuple[int, int]:
    """(bytes of anonymous memory, of shared pages its part, and open descriptors) of one process."""
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() if ":" in line
    )
    return int(fields["Pss_Anon"].split()[0]) * 1024, len(list(Path(f"/proc/{pid}/fd").iterdir()))


def measure(preset: str, num_envs: int, settings: dict[str, object], at_least_s: float) -> dict[str, float]:
    """Runs with so many environments until batches have been learned from, and reads the processes' usage."""
    config = rollmill.make_config(preset, {"num_envs": num_envs, **settings}).resolved()
    found: dict[str, float] = {}
    begun = time.monotonic()

    def look() -> bool:
        if "processes" in found:
            return True  # Asked again while the run ends, and fewer and fewer of them are there.
        if "agent_steps" not in found or time.monotonic() - begun < at_least_s:
            return False
        memory = descriptors = processes = 0
        for pid in [*members(token), server]:
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                nbytes, files = usage(pid)
            except OSError:
                continue
            # Not the watchdog, nor multiprocessing's helper, which serves this whole program and not one run.
            if b"sweep.py" not in command and b"resource_tracker" not in command:
                memory, descriptors, processes = memory + nbytes, descriptors + files, processes + 1
        found.update(bytes=memory, descriptors=descriptors, processes=processes)
        return True

    server = ensure_fork_server()  # Before there is a token: it serves the whole program.
    token = uuid.uuid4().hex
    os.environ["ROLLMILL_RUN_ID"] = token
    with tempfile.TemporaryDirectory() as folder:
        outcome = run(
            config,
            Path(folder),
            quiet=True,
            stop_when=look,
            on_report=lambda report, _: found.update(agent_steps=report.agent_steps) if report.agent_steps else None,
        )
        log = (Path(folder) / "run.log").read_text()
    found["slots"] = float(log.split(" slots in ")[0].split()[-1])
    found["arena_mib"] = float(log.split(" slots in ")[1].split()[0].replace(",", ""))
    found["started_and_learned"] = outcome.agent_steps > 0
    found["num_envs"] = num_envs
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset")
    parser.add_argument("--num-envs", type=int, nargs="+", default=[64, 512, 3000])
    parser.add_argument("--rollout-length", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=5.0, help="least time before looking")
    arguments = parser.parse_args()
    for num_envs in arguments.num_envs:
        settings: dict[str, object] = {"rollout_length": arguments.rollout_length, "rollout.decorrelate_steps": 0}
        print(json.dumps(measure(arguments.preset, num_envs, settings, arguments.seconds)), flush=True)


if __name__ == "__main__":
    main()
