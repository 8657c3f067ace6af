"""A run's weights and configuration as read by evaluation. Read-only."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from rollmill.algorithms.config import AlgorithmConfig
from rollmill.algorithms.off_policy_config import OffPolicyConfig, off_policy_config_of
from rollmill.algorithms.on_policy_config import OnPolicyConfig
from rollmill.envs.config import EnvConfig
from rollmill.envs.trust import named_code
from rollmill.models.config import ModelConfig
from rollmill.runtime.signatures import Verdict
from rollmill.runtime.signed_files import read_signed, require_trust
from rollmill.settings.option_list import list_options
from rollmill.settings.options import from_json
from rollmill.specs import BoxActions
from rollmill.storage.checkpoint_file import CheckpointError, load_checkpoint
from rollmill.storage.checkpoints import CheckpointConfig, CheckpointStore
from rollmill.storage.missing_runs import why_no_run
from rollmill.storage.population_config import POLICIES_FOLDER, PopulationConfig


class NoRunError(LookupError):
    """The directory holds no run, or no checkpoint of that name."""


class Snapshot(NamedTuple):
    """One checkpoint in memory, independent of the run that wrote it.

    Attributes:
        env: The environment that the run was trained on.
        model: The network's configuration.
        weights: ``state_dict`` of the algorithm, normalisers included.
        agent_steps: Agent steps of training.
        checkpoint: The file.
        algorithm: The algorithm's configuration.
        verdict: Result of verifying the signature of the run's configuration.
        group_size: Environments in each of the run's groups; None if it was chosen automatically.
    """

    env: EnvConfig
    model: ModelConfig
    weights: dict[str, Any]
    agent_steps: int
    checkpoint: Path
    algorithm: OnPolicyConfig | OffPolicyConfig = OnPolicyConfig()
    verdict: Verdict = Verdict.UNSIGNED
    group_size: int | None = None

    @property
    def box_actions(self) -> BoxActions:
        """Conversion of continuous actions in the data plane."""
        return self.algorithm.box_actions(self.model)


def policies_of_run(run_dir: Path | str) -> list[str]:
    """Return the names of a run's policies in alphabetical order; empty if it has one policy.

    Raises:
        NoRunError: The run may not be read.
    """
    folder = Path(run_dir) / POLICIES_FOLDER
    try:
        return sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    except OSError as error:
        raise NoRunError(_unreadable(folder, error)) from error


def read_population(run_dir: Path | str) -> tuple[PopulationConfig, dict[str, object]]:
    """Read a run's policies and guests, and the settings ``NAME.KEY`` that they have for themselves.

    Raises:
        NoRunError: The file is not a run's configuration.
    """
    path = Path(run_dir) / "config.json"
    try:
        saved, _ = read_signed(path)
        population = from_json(PopulationConfig, {"population": saved.get("population", {})})
        return population, dict(saved.get("policy", {}))
    except OSError as error:
        raise NoRunError(_unreadable(path, error)) from error
    except (ValueError, KeyError) as error:
        raise NoRunError(f"{path} is not the configuration of a run ({error!r}); restore it from a backup") from error


def folder_of_policy(run_dir: Path | str, policy: str | None) -> Path:
    """Return the directory that has the files of one policy of a run.

    Args:
        run_dir: Directory of a run.
        policy: The policy's name; None of a run with one policy, or of a directory that is a policy's own.

    Raises:
        NoRunError: There is no such policy, or several and none is named.
    """
    run_dir, names = Path(run_dir), policies_of_run(run_dir)
    folder = run_dir / POLICIES_FOLDER
    if policy is None:
        if names:
            raise NoRunError(
                f"{run_dir} is a run of {len(names)} policies: name one of {', '.join(names)} (--policy NAME, "
                f"policy=NAME), or give its directory, {folder / names[0]}"
            )
        return run_dir
    if policy not in names:
        if not names and not (run_dir / "config.json").is_file():
            raise NoRunError(why_no_run(run_dir))
        known = f"its policies are {', '.join(names)}" if names else "it has one policy; omit the name"
        raise NoRunError(f"{run_dir} has no policy {policy!r}: {known}")
    return folder / policy


def read_snapshot(run_dir: Path | str, checkpoint: str | Path = "latest") -> Snapshot:
    """Read a checkpoint and the configuration of its run.

    Args:
        run_dir: Directory of a run.
        checkpoint: ``"latest"``, ``"best"``, the path of a checkpoint file, or the name of one of the run's.

    Raises:
        NoRunError: There is no such run or file.
        CheckpointError: No checkpoint is intact, or the named file is not a checkpoint.
        OptionError: The saved configuration is not valid.
    """
    run_dir = Path(run_dir)
    path = run_dir / "config.json"
    if not path.is_file():
        raise NoRunError(why_no_run(run_dir))
    try:
        saved, verdict = read_signed(path)
        env, model = saved["env"], saved["model"]
        algorithm = _algorithm_of(saved)
        group_size = saved.get("envs_per_group")
    except OSError as error:
        raise NoRunError(_unreadable(path, error)) from error
    except (ValueError, KeyError) as error:
        raise NoRunError(f"{path} is not the configuration of a run ({error!r}); restore it from a backup") from error
    store = _store(run_dir)
    if checkpoint == "latest":
        state, file = store.load_latest()
    elif checkpoint == "best":
        state, file = store.load_best()
    else:
        file = Path(checkpoint)
        if not file.is_file():
            file = store.folder / checkpoint
        if not file.is_file():
            raise NoRunError(f"there is no checkpoint {checkpoint}; give latest, best, or a file of {store.folder}")
        state = load_checkpoint(file)
    try:
        weights, agent_steps = state["model"], int(state["counters"]["agent_steps"])
        if not isinstance(weights, dict):
            raise TypeError(f"its model is a {type(weights).__name__}")
    except (LookupError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{file} does not hold a network and its agent steps ({error!r}): give another checkpoint, or restore it"
        ) from error
    return Snapshot(
        from_json(EnvConfig, {"env": env}),
        from_json(ModelConfig, {"model": model}),
        weights,
        agent_steps,
        file,
        algorithm,
        verdict,
        group_size if isinstance(group_size, int) else None,
    )


AnAlgorithm = TypeVar("AnAlgorithm", bound=AlgorithmConfig)


def _algorithm_of(saved: dict[str, Any]) -> OnPolicyConfig | OffPolicyConfig:
    if saved.get("regime") != "replay":
        return _settings_of(OnPolicyConfig, saved)
    return _settings_of(off_policy_config_of(saved["off_policy"]["algorithm"]), saved)


def _settings_of(kind: type[AnAlgorithm], saved: dict[str, Any]) -> AnAlgorithm:
    """The settings of one kind in a complete configuration."""
    known = {option.key for option in list_options(kind)}
    sections = {
        section: {name: value for name, value in values.items() if f"{section}.{name}" in known}
        for section, values in saved.items()
        if isinstance(values, dict)
    }
    return from_json(kind, {section: values for section, values in sections.items() if values})


def require_trusted(run_dir: Path | str, snapshot: Snapshot, *, trust: bool) -> None:
    """Raise unless a run's environment, and the code that its configuration names, may be used.

    Args:
        run_dir: The run's directory.
        snapshot: The run's snapshot.
        trust: Whether the user trusts it.

    Raises:
        UntrustedError: They must not be used.
    """
    require_trust(Path(run_dir) / "config.json", snapshot.verdict, named_code(snapshot.env), trust=trust)


def folder_of_player(player: Path | str) -> tuple[Path, str]:
    """Return the directory of a player of matches, and which of its checkpoints plays.

    Args:
        player: A run directory, or a checkpoint file of a run.

    Raises:
        NoRunError: It is a run of several policies, there is no such file, or it belongs to no run.
    """
    path = Path(player)
    if path.is_file():  # DIR/checkpoints/FILE
        folder = path.parent.parent
        if not (folder / "config.json").is_file():
            raise NoRunError(
                f"{path} is not a checkpoint file of a run: there is no config.json in {folder}; give the directory "
                "that train printed, or a file in its folder checkpoints"
            )
        return folder, str(path)
    if path.suffix == ".pt":
        beside = sorted(each.name for each in path.parent.glob("*.pt"))
        known = f"{path.parent} has {', '.join(beside)}" if beside else f"{path.parent} has no checkpoints"
        raise NoRunError(f"there is no checkpoint file {path}: {known}")
    return folder_of_policy(path, None), "latest"


def newest_checkpoint(run_dir: Path | str) -> Path | None:
    """Return the file that ``"latest"`` tries first; None if there is none."""
    return next(iter(_store(Path(run_dir)).paths()), None)


def _store(run_dir: Path) -> CheckpointStore:
    return CheckpointStore(run_dir / "checkpoints", CheckpointConfig())


def _unreadable(path: Path, error: OSError) -> str:
    return f"{path} cannot be read ({error.strerror}): change its permissions"
