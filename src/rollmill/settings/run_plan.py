"""The plan of a run: its directory, its configuration, and whether it resumes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from rollmill.algorithms.on_policy_config import OnPolicyConfig
from rollmill.extras import can_import, install_command, missing_modules
from rollmill.regimes.user_code import is_registered_player
from rollmill.runtime.ranks import Ranks
from rollmill.runtime.signatures import Verdict
from rollmill.runtime.signed_files import signed, unsigned, verdict_on
from rollmill.settings.config import Config
from rollmill.settings.idle import check_evaluated
from rollmill.settings.new_config import check_effects, new_config
from rollmill.settings.option_values import coerce
from rollmill.settings.options import apply, from_json, full_keys, named_settings, to_json
from rollmill.settings.policies import with_own_settings
from rollmill.settings.run_config import CONFIG_FILE, check_can_resume, load_trusted
from rollmill.settings.run_directory import RunDirectoryError, directory_of_launcher, make_directory, new_directory
from rollmill.settings.value_checks import ConfigError
from rollmill.storage.population_config import RANDOM_PLAYER, split_guest
from rollmill.tracking.registry import check_trackers


@dataclass(frozen=True)
class RunPlan:
    """A run to be started.

    Attributes:
        directory: The run's.
        settings: What is saved, with "auto" where the user set nothing, because a resume may be on another machine.
        resume: Whether it continues from a checkpoint.
        notes: What the start of the run tells the user about the arguments.
    """

    directory: Path
    settings: Config
    resume: bool
    notes: tuple[str, ...] = ()

    def pack(self) -> tuple[str, dict[str, Any], bool, tuple[str, ...]]:
        """Encode the plan as plain data, for the other ranks."""
        return str(self.directory), signed(to_json(self.settings)), self.resume, self.notes

    @classmethod
    def unpack(cls, packed: tuple[str, dict[str, Any], bool, tuple[str, ...]]) -> tuple[RunPlan, Verdict]:
        """Decode the result of :meth:`pack`, with the verdict on its signature."""
        directory, settings, resume, notes = packed
        return cls(Path(directory), from_json(Config, unsigned(settings)), resume, notes), verdict_on(settings)


def plan_run(
    preset: str | None,
    given: dict[str, object],
    run_dir: Path | str | None,
    *,
    resume: bool,
    algo: str | None,
    protocol: str | None,
    ranks: Ranks,
    trust: bool,
    has_callbacks: bool = False,
) -> RunPlan:
    """Turn the arguments of :func:`rollmill.train` into a plan, and create the run directory.

    Callbacks, if there are any, may ask for evaluations, so that settings of evaluations have an effect.
    """
    has_short_batch_size = "batch_size" in given
    if run_dir is None and ranks.restarts and preset is not None:
        run_dir = directory_of_launcher(preset)
    if ranks.restarts and run_dir is not None and (Path(run_dir) / CONFIG_FILE).exists():
        # torchrun restarted all processes with the original command.
        resume, algo, protocol = True, None, None
    if resume:
        if run_dir is None:
            raise RunDirectoryError(
                "resume without run_dir: give the directory of the run to resume (--run-dir DIR, run_dir=DIR)."
            )
        directory = Path(run_dir)
        saved = load_trusted(directory, trust=trust)
        if algo is not None or protocol is not None:
            named = {"algo": algo, "protocol": protocol}
            given_names = ", ".join(f"{name}={value!r}" for name, value in named.items() if value is not None)
            raise RunDirectoryError(
                f"{given_names} with resume: a resumed run keeps its algorithm and protocol; omit them, or give single "
                "settings."
            )
        given = full_keys(saved, given)
        if "env.imports" in given:  # Those of the run are needed, too.
            text = isinstance(given["env.imports"], str)
            imports = coerce(given["env.imports"], tuple[str, ...], "env.imports", text=text)
            given["env.imports"] = tuple(dict.fromkeys((*saved.env.imports, *cast("tuple[str, ...]", imports))))
        settings = apply(saved, given)
        check_can_resume(directory, saved, settings)
        check_effects(named_settings(saved, given), settings)
        if preset is not None and settings.preset and settings.preset not in (preset, f"gym/{preset}"):
            raise RunDirectoryError(
                f"{directory} is a run of {settings.preset!r}, not of {preset!r}: resume it by its own "
                "name, or start a new run in another directory."
            )
    else:
        if preset is None:
            raise RunDirectoryError(
                "no preset was given: name one (`rollmill envs` lists them) before the settings, or resume a run."
            )
        settings = new_config(preset, given, algo=algo, protocol=protocol)
    settings = _with_lasting_players(with_own_settings(settings), None if not resume else given)
    settings.resolved(ranks.world_size)
    given = full_keys(settings, given)
    if not has_callbacks:
        check_evaluated(given, settings)
    check_packages(settings)
    notes = _notes_on_batch_size(settings) if has_short_batch_size and "learner.minibatches" not in given else ()
    to_json(settings)  # Raises if config.json cannot represent a value, before anything is created or started.
    if run_dir is None:
        assert preset is not None
        if ranks.is_alone:
            return RunPlan(new_directory(preset), settings, resume, notes)
        run_dir = directory_of_launcher(preset)
    make_directory(Path(run_dir), is_new=False)
    return RunPlan(Path(run_dir), settings, resume, notes)


def _notes_on_batch_size(settings: Config) -> tuple[str, ...]:
    """Say what ``batch_size`` has set where the short name means a minibatch in other libraries."""
    algorithm = settings.algorithm
    # In lockstep another value than the whole batch is refused.
    if not isinstance(algorithm, OnPolicyConfig) or algorithm.minibatches == 1 or settings.in_lockstep:
        return ()
    batch, parts = algorithm.batch_size, algorithm.minibatches
    return (
        f"learner.batch_size={batch} is the whole batch, in {parts} minibatches of {algorithm.minibatch_size}; in "
        f"Stable-Baselines3 and Sample Factory batch_size is a minibatch. Use learner.batch_size={parts * batch} for "
        f"minibatches of {batch}; the complete name is taken without this note.",
    )


def check_packages(settings: Config) -> None:
    """Check that what a run needs besides its environment is installed: for trackers, videos and ratings.

    Raises:
        UnknownTrackerError: No tracker has one of the names.
        TrackerNotInstalledError: The package of one is missing.
        ConfigError: Another package is missing.
    """
    check_trackers(settings.tracking)
    if settings.population.rating == "openskill" and not can_import("openskill"):
        raise ConfigError(f"population.rating='openskill' needs a package: {install_command('ratings')}.")
    if settings.eval_video is not None and (missing := missing_modules("video")):
        raise ConfigError(
            f"eval_video={settings.eval_video} needs {' and '.join(missing)}, not installed here: "
            f"{install_command('video')}."
        )


def _with_lasting_players(settings: Config, given: Collection[str] | None) -> Config:
    """Return settings whose guests and opponents are found from any folder.

    Args:
        settings: Of the run.
        given: Keys of a resumed run that the user has given; others are as the run has saved them. None is a new run.
    """
    guests, opponents = settings.population.guests, settings.eval_against
    if given is None or "population.guests" in given:
        guests = tuple(map(_lasting_guest, guests))
    if given is None or "eval_against" in given:
        opponents = tuple(map(_lasting_player, opponents))
    return replace(settings, population=replace(settings.population, guests=guests), eval_against=opponents)


def _lasting_guest(given: str) -> str:
    name, player = split_guest(given)
    return f"{name}={_lasting_player(player)}" if name else _lasting_player(given)


def _lasting_player(player: str) -> str:
    """Return the absolute path of a file or folder, unless it is a player's name, too."""
    if player == RANDOM_PLAYER or is_registered_player(player) or not Path(player).exists():
        return player
    return str(Path(player).absolute())
