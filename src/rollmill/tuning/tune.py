"""``rollmill tune``: profile, choose, try, report, and write settings that ``rollmill train`` accepts.

1. The network is timed alone (:mod:`.network`). Then the preset's own allocation runs for some seconds, which gives the
   costs of the stages (:mod:`.profile`).
2. The model ranks all allocations (:mod:`.search`).
3. The most promising ones are started too. Each corrects the costs and thereby the next candidate.
4. All of them take turns; after every second round the slower half is dropped (:mod:`.trials`). The fastest one
   replaces the preset if it is clearly faster in new turns.

With curves of another machine or an accelerator nothing is measured: PAL's equation 5 is solved on them.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollmill.api import check_main_guard, make_config, preset_name
from rollmill.extras import install_command, missing_modules
from rollmill.runtime.affinity import usable_cores
from rollmill.runtime.signals import sigterm_interrupts
from rollmill.settings.config import Config
from rollmill.settings.options import full_keys
from rollmill.settings.value_checks import ConfigError
from rollmill.tuning.by_curves import tune_by_curves
from rollmill.tuning.curves import Curves, check_cores
from rollmill.tuning.result import TUNED_FILE, Tuning
from rollmill.tuning.settings import SettingsFileError
from rollmill.tuning.tuner import Tuner

SECONDS = 60.0


def tune(
    preset: str | Callable[..., Any] | Sequence[str | Callable[..., Any]],
    *,
    algo: str | None = None,
    protocol: str | None = None,
    seconds: float = SECONDS,
    curves: Curves | Path | str | None = None,
    cores: int | None = None,
    output: Path | str | None = None,
    say: Callable[[str], None] | None = None,
    **overrides: object,
) -> Tuning:
    """Find the fastest allocation of this machine's cores, or of a machine whose curves are given.

    Args:
        preset: As for :func:`rollmill.train`.
        algo: Likewise.
        protocol: Likewise.
        seconds: For starting and measuring candidates. The preset's own allocation and one candidate are always tried.
        curves: Measured throughput of both sides, or a file of it. Nothing is measured then.
        cores: M; by default this machine's, or the curves' own.
        output: A directory for ``tuned.json``, the curves, the report and, with matplotlib, the picture.
        say: Receives lines about the progress.
        **overrides: Settings, as for :func:`rollmill.train`; they are kept.

    Raises:
        ValueError: Invalid settings or curves.
        MainGuardError: See :func:`rollmill.train`.
        ProcessFailed: The preset's own run failed.
        KeyboardInterrupt: Ctrl-C or SIGTERM.
    """
    check_main_guard("tune()")
    begun = time.monotonic()
    preset = preset_name(preset)
    config = _with_room(make_config(preset, overrides, algo=algo, protocol=protocol), overrides).resolved()
    if cores is not None:
        check_cores(cores)
    given: Curves | None = None
    if curves is not None:
        given = curves if isinstance(curves, Curves) else Curves.read(curves, cores=cores)
        if cores is not None:
            given = replace(given, cores=cores)
    if output is not None and say is not None and missing_modules("plots"):
        say(f"tuning.png is not drawn, because matplotlib is not installed: {install_command('plots')}")
    with _folder(output, overrides):
        if given is not None:
            tuning = tune_by_curves(config, preset, overrides, given, begun)
        else:
            tuner = Tuner(
                config=config,
                name=preset,
                overrides=overrides,
                cores=cores or usable_cores(),
                algo=algo,
                protocol=protocol,
                say=say or (lambda _: None),
            )
            with sigterm_interrupts():
                tuning = tuner.run(begun, seconds)
        if output is not None:
            tuning.write(output)
    return tuning


@contextlib.contextmanager
def _folder(output: Path | str | None, overrides: dict[str, object]) -> Iterator[None]:
    """Create the output directory, and remove it if tuning fails and it is empty."""
    if output is None:
        yield
        return
    directory = Path(output)
    is_new = not directory.exists()
    try:
        _check_can_be_written(overrides, directory)
        yield
    except BaseException:
        if is_new:
            with contextlib.suppress(OSError):  # It is not empty, or was never created.
                directory.rmdir()
        raise


def _with_room(config: Config, overrides: dict[str, object]) -> Config:
    """If environments and groups are free, start with as many as the user's numbers of workers need."""
    given = full_keys(config, overrides)
    if config.in_lockstep or not {"num_envs", "envs_per_group"}.isdisjoint(given):
        return config
    try:
        config.resolved()
    except ConfigError:
        workers = 1 if config.rollout.num_workers == "auto" else config.rollout.num_workers
        is_given = "rollout.groups_per_worker" in given
        groups = workers * (
            config.rollout.groups_per_worker if is_given else -(-config.inference.num_workers // workers)
        )
        size = max(1, config.num_envs // groups)
        return replace(config, num_envs=groups * size, envs_per_group=size)
    return config


def _check_can_be_written(overrides: dict[str, object], directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise SettingsFileError(f"{directory} cannot be written ({error.strerror}); choose another one.") from error
    try:
        json.dumps(overrides)
    except (TypeError, ValueError) as error:
        raise SettingsFileError(
            f"a setting cannot be written to {TUNED_FILE} ({error}): leave output out, and train with tuning.settings."
        ) from error
