"""Reads and writes the configuration in a run's directory, and decides which settings a resumed run may change."""

from __future__ import annotations

import json
import os
import stat
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollmill.envs.trust import named_code
from rollmill.regimes.steps_done import saved_steps
from rollmill.regimes.user_code import uses_registrations
from rollmill.runtime.signatures import Verdict
from rollmill.runtime.signed_files import read_signed, require_trust, signed
from rollmill.settings.config import Config
from rollmill.settings.option_values import format_value
from rollmill.settings.options import flatten, from_json, to_json
from rollmill.settings.policies import LOAD, source_of, with_own_settings
from rollmill.settings.run_directory import RunDirectoryError
from rollmill.storage.checkpoints import CheckpointStore
from rollmill.storage.missing_runs import why_no_run
from rollmill.storage.whole_files import write_whole
from rollmill.tracking.config import TENSORBOARD

CONFIG_FILE = "config.json"
# Settings of earlier versions that changed nothing.
_REMOVED = {"learner": ("cuda_graphs",)}
# A setting of earlier versions that named the only tracker besides TensorBoard.
_WANDB_PROJECT = "wandb_project"
# Settings that decide what weights, the optimiser's state, or observations and actions are.
_FIXED = (
    "regime",
    "learner.optimiser",
    "learner.freeze",
    "off_policy.algorithm",
    "off_policy.dueling",
    "off_policy.num_critics",
    "off_policy.value_rescaling",
    # The arguments may change, for example a difficulty or a path. Loading the weights checks the spaces.
    "env.name",
    "env.tasks",
    *(f"env.atari.{name}" for name in ("full_action_space", "frame_stack", "screen_size", "grayscale")),
    *(f"env.vizdoom.{name}" for name in ("width", "height", "measurements", "sound")),
    *(f"env.dmlab.{name}" for name in ("width", "height", "extended_actions", "instructions")),
    "population.snapshots",
    # Read where a run begins, not where it goes on.
    "init_from",
    "init_skip",
    "init_optimiser",
)
# The saved states of groups, the noise and the versions in flight depend on these.
_FIXED_IN_LOCKSTEP = ("lag", "num_envs", "envs_per_group", "rollout_length", "seed")


def write_config(directory: Path, config: Config) -> None:
    """Replace ``config.json`` atomically, signed with this user's key.

    Where the user's own script may have registered what is trained, the file names the script, so that ``rollmill
    eval`` and others, which the script does not start, find it.
    """
    config = replace(config, env=replace(config.env, imports=imports_of(config)))
    content = json.dumps(signed(to_json(config)), indent=2) + "\n"
    write_whole(directory / CONFIG_FILE, content.encode(), directory / f"{CONFIG_FILE}.new")


def imports_of(config: Config) -> tuple[str, ...]:
    """The modules to import before a run, among them the user's script if it may have registered something."""
    script = own_script()
    if script is None or not uses_registrations(config):
        return config.env.imports
    return tuple(dict.fromkeys((*config.env.imports, script)))


def load_config(run_dir: Path | str) -> Config:
    """Load a run's configuration as data. Build nothing that it names; use :func:`load_trusted` for that.

    Raises:
        RunDirectoryError: There is no run in this directory.
    """
    return _read(run_dir)[0]


def names_own_code(run_dir: Path | str, *, trust: bool) -> bool:
    """Whether ``config.json`` exists, names code that is not built in, and is trusted to have it executed.

    Args:
        run_dir: The run's directory.
        trust: Whether the user trusts it, even if it has no valid signature of this user.
    """
    try:
        config, verdict = _read(run_dir)
    except ValueError:
        return False
    return (trust or verdict is Verdict.VALID) and bool(named_code(config.env))


def load_trusted(run_dir: Path | str, *, trust: bool) -> Config:
    """Load the configuration of a run to be resumed, if the code that it names may be executed.

    Pickled environments and replays have signatures of their own. Each process that reads them verifies these.

    Args:
        run_dir: The run's directory.
        trust: Whether the user trusts it.

    Raises:
        RunDirectoryError: There is no run in this directory.
        UntrustedError: It has no valid signature of this user, and ``trust`` is false.
    """
    directory = Path(run_dir)
    config, verdict = _read(directory)
    reason = named_code(config.env)
    if not reason and config.in_lockstep:
        reason = "checkpoints of runs in lockstep hold pickled environments"
    if not reason and config.tracking.reports_to:
        reason = f"it reports the run to a service ({config.tracking.reports_to})"
    if not reason and (entry := _leads_elsewhere(directory)) is not None:
        reason = f"{entry} is a link or a device, through which a resumed run would write to other places"
    require_trust(directory / CONFIG_FILE, verdict, reason, trust=trust)
    return config


def _leads_elsewhere(directory: Path) -> Path | None:
    """The first entry of a run's directory that is neither a folder nor a regular file; Rollmill creates no others."""
    for folder, folders, files in os.walk(directory):
        for path in (Path(folder, name) for name in (*folders, *files)):
            mode = path.lstat().st_mode
            if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
                return path
    return None


def _read(run_dir: Path | str) -> tuple[Config, Verdict]:
    """The configuration and the verdict on its signature."""
    path = Path(run_dir) / CONFIG_FILE
    if os.path.exists(path) and not os.path.isfile(path):  # Reading a pipe could block.
        raise RunDirectoryError(f"{path} is not a regular file: restore it, or start a new run.")
    try:
        content, verdict = read_signed(path)
    except (FileNotFoundError, NotADirectoryError):
        raise RunDirectoryError(f"{why_no_run(run_dir)}.") from None
    except OSError as error:
        raise RunDirectoryError(f"{path} cannot be read ({error.strerror}): change its permissions.") from error
    except ValueError as error:
        raise RunDirectoryError(
            f"{path} is incomplete or invalid ({error}): restore it, or start a new run."
        ) from error
    config = from_json(Config, _as_saved_today(content))
    assert isinstance(config, Config)
    return with_own_settings(config), verdict


def _as_saved_today(content: dict[str, Any]) -> dict[str, Any]:
    """A saved configuration without what only earlier versions have saved: their files have the keys of all regimes."""
    for section, names in _REMOVED.items():
        if isinstance(saved := content.get(section), dict):
            content = {**content, section: {key: value for key, value in saved.items() if key not in names}}
    if _WANDB_PROJECT in content:
        project = content[_WANDB_PROJECT]
        content = {key: value for key, value in content.items() if key != _WANDB_PROJECT}
        if project is not None:
            content |= {"tracker": [TENSORBOARD, "wandb"], "tracking": {"project": project}}
    return content


def changed_settings(saved: Config, config: Config) -> dict[str, tuple[object, object]]:
    """Key -> (old value, new value) of all settings in which two configurations differ."""
    before, now = flatten(saved), flatten(config)
    keys = dict.fromkeys((*before, *now))
    return {key: (before.get(key), now.get(key)) for key in keys if before.get(key) != now.get(key)}


def refuse_a_run_in(directory: Path | str) -> None:
    """Refuse a directory for a new run.

    Raises:
        RunDirectoryError: It holds one already.
    """
    if (Path(directory) / CONFIG_FILE).exists():
        raise RunDirectoryError(f"{directory} already holds a run: resume it (--resume), or choose another directory.")


def check_can_resume(directory: Path, saved: Config, config: Config) -> None:
    """Reject settings with which a checkpoint cannot be resumed, before anything is started.

    Args:
        directory: The run's.
        saved: The configuration that it was started with.
        config: The configuration to resume it with.

    Raises:
        RunDirectoryError: Weights or optimiser state would not fit, and the message names the settings; or there are
            only checkpoints that cannot be resumed.
    """
    folders = config.population.folders(directory)
    stores = [CheckpointStore(folder / "checkpoints", config.checkpoint) for folder in folders]
    # A run that has all of its steps is complete: nothing is resumed.
    if any(store.lacks_state for store in stores) and (saved_steps(folders, to_resume=False) or 0) < config.total_steps:
        raise RunDirectoryError(
            f"the run in {directory} cannot be resumed: its checkpoints hold networks, but not the state to resume, "
            "because it was published, or ended before its first regular checkpoint; start a new run with its network: "
            f"--init-from {directory} (init_from)."
        )
    old = _changes_of_the_fixed(saved, config)
    if saved.population.names != config.population.names:
        old["population.policies"] = saved.population.names
    else:
        for name, *policies in zip(saved.population.names, saved.policies, config.policies, strict=True):
            of_policy = _changes_of_the_fixed(*policies)
            old |= {f"policy.{name}.{key}": value for key, value in of_policy.items() if key not in old}
            if (source := source_of(saved, name)) != source_of(config, name) and "init_from" not in old:
                old[f"policy.{name}.{LOAD}"] = source
    if len(saved.population.guests) != len(config.population.guests):
        old["number of population.guests"] = len(saved.population.guests)  # Checkpoints have results against each.
    if old:
        values = ", ".join(f"{key}={format_value(value)}" for key, value in old.items())
        raise RunDirectoryError(
            f"the run in {directory} cannot be resumed with another {', '.join(old)}: its weights and the state of "
            f"its optimiser were made with {values}; keep that, or start a new run, with these weights as far as they "
            f"fit: --init-from {directory} (init_from)."
        )


def _changes_of_the_fixed(saved: Config, config: Config) -> dict[str, object]:
    """Key -> old value of changed settings that a resume must keep."""
    before, now = flatten(saved), flatten(config)
    fixed = (*_FIXED, *_FIXED_IN_LOCKSTEP) if saved.in_lockstep else _FIXED
    # A key that only one of them has belongs to a regime or an algorithm, which has changed itself.
    old = {
        key: value
        for key, value in before.items()
        if key in now and now[key] != value and (key in fixed or key.startswith("model."))
    }
    learns = "off_policy.temperature"
    if learns in before.keys() & now.keys() and (before[learns] == "auto") != (now[learns] == "auto"):
        old[learns] = before[learns]
    return old


def own_script() -> str | None:
    """The user's running script, as ``env.imports`` names it: its file, or a package's module (``python -m``).

    None in the command ``rollmill``, in a notebook and at a prompt.
    """
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    # A package that is run (`python -m pytest`) is not a script: its __main__.py would run again when it is imported.
    if file is None or not file.endswith(".py") or Path(file).name == "__main__.py":
        return None
    script = Path(file).resolve()
    if script.is_relative_to(Path(__file__).resolve().parents[1]):
        return None
    spec = getattr(main, "__spec__", None)
    return spec.name if spec is not None and spec.parent else str(script)
