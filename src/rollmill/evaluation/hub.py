"""Publishing an agent on the Hugging Face Hub, and fetching one (https://huggingface.co/docs/hub)."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rollmill.envs.errors import MissingExtra
from rollmill.evaluation.evaluate import evaluate_snapshot
from rollmill.evaluation.evaluation_result import EvaluationResult
from rollmill.evaluation.lineup import lineup_of_run
from rollmill.evaluation.model_card import CardFacts, model_card
from rollmill.evaluation.published import published_command, published_settings
from rollmill.evaluation.roles import role_of, run_of
from rollmill.evaluation.saved_spaces import SPACES_FILE
from rollmill.evaluation.snapshot import Snapshot, folder_of_policy, read_snapshot, require_trusted
from rollmill.extras import check_extra, install_command
from rollmill.models.device import one_thread, resolve_device
from rollmill.runtime.run_log import every_line, last_lines
from rollmill.runtime.signed_files import read_signed
from rollmill.storage.checkpoint_file import encode_checkpoint

SCHEME = "hf://"
_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_CARD, _VIDEO, _RESULT = "README.md", "replay.mp4", "results.json"
_MOST_SETTINGS = 60


class HubError(RuntimeError):
    """The Hub, or the package that talks to it, refused a request."""


class Published(NamedTuple):
    """A published agent.

    Attributes:
        name: ``USER/NAME``.
        url: Of its page; the folder, if it was written to one instead.
        result: The evaluation that its card tells.
    """

    name: str
    url: str
    result: EvaluationResult


def _library() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise MissingExtra(
            f"the Hugging Face Hub needs the package huggingface_hub ({error}): {install_command('hub')}"
        ) from error
    return huggingface_hub


def _endpoint() -> str | None:
    """Another server than huggingface.co, as the package itself takes it."""
    return os.environ.get("HF_ENDPOINT") or None


def check_name(name: str) -> str:
    """Return a repository's name.

    Raises:
        HubError: It is none.
    """
    if not _NAME.fullmatch(name):
        raise HubError(f"{name!r} is no name of a repository: give USER/NAME")
    return name


def write_folder(folder: Path, name: str, run_dir: Path, snapshot: Snapshot, result: EvaluationResult) -> None:
    """Write what is published: the network, its settings and spaces, the evaluation, and the card.

    The network is stored without optimisers and without states of environments.

    Args:
        folder: Where to; a video ``replay.mp4`` may be there already.
        name: Of the repository.
        run_dir: Directory of the policy that is published.
        snapshot: Its network.
        result: The evaluation of this network.
    """
    saved = published_settings(read_signed(run_dir / "config.json")[0])
    (folder / "config.json").write_text(json.dumps(saved, indent=2) + "\n")
    if (run_dir / SPACES_FILE).is_file():
        shutil.copyfile(run_dir / SPACES_FILE, folder / SPACES_FILE)
    state = {"model": snapshot.weights, "counters": {"agent_steps": snapshot.agent_steps}}
    (folder / "checkpoints").mkdir()
    file = folder / "checkpoints" / f"checkpoint_000001_steps_{snapshot.agent_steps:012d}_end.pt"
    file.write_bytes(encode_checkpoint(state, snapshot.agent_steps, result.mean, "evaluation_return"))
    told = {**result.to_dict(), "checkpoint": snapshot.checkpoint.name, "video": None}
    (folder / _RESULT).write_text(json.dumps(told, indent=2) + "\n")
    has_video = (folder / _VIDEO).is_file()
    card = model_card(_facts(name, run_dir, snapshot, saved, result, has_video=has_video))
    (folder / _CARD).write_text(card, encoding="utf-8", errors="backslashreplace")


def _facts(
    name: str, run_dir: Path, snapshot: Snapshot, saved: dict[str, Any], result: EvaluationResult, *, has_video: bool
) -> CardFacts:
    told = last_lines(run_of(run_dir), ("versions", "settings that differ from the defaults"))
    # A resumed run was trained by several.
    commands = [line.rpartition(" (in ")[0] for line in every_line(run_of(run_dir), "command")]
    # A value may contain a comma, too.
    differing = re.split(r", (?=[\w.]+=)", told.get("settings that differ from the defaults", ""))
    settings = published_settings(dict(part.partition("=")[::2] for part in differing if "=" in part))
    return CardFacts(
        name=name,
        algorithm=snapshot.algorithm.algorithm,
        regime=str(saved.get("regime", "")),
        result=result,
        command="\n".join(map(published_command, commands)),
        versions=told.get("versions", ""),
        settings=dict(list(settings.items())[:_MOST_SETTINGS]),
        has_video=has_video,
    )


def push(
    run_dir: Path | str,
    name: str,
    *,
    checkpoint: str | Path = "latest",
    policy: str | None = None,
    episodes: int = 100,
    seed: int = 0,
    deterministic: bool | None = None,
    device: str = "cpu",
    video: bool = True,
    private: bool = False,
    to_folder: Path | str | None = None,
    trust: bool = False,
) -> Published:
    """Publish a run's agent on the Hugging Face Hub, with a card that tells how good it is.

    A policy that plays some agents of its run is evaluated as these, with the run's other policies as the others.

    Settings of trackers, logins in addresses and folders of this machine in the command are left out.

    Log in first (``hf auth login``, or the environment variable ``HF_TOKEN``).

    Args:
        run_dir: Directory of a run, finished or not.
        name: Of the repository, ``USER/NAME``; made if it does not exist, and otherwise updated.
        checkpoint: ``"latest"``, ``"best"``, or the path of a checkpoint file.
        policy: In a run with several policies, the one to publish.
        episodes: Of the evaluation that the card tells.
        seed: Keys the evaluation.
        deterministic: As in ``Agent.act``.
        device: Device of the network in the evaluation and the video.
        video: Whether to film an episode.
        private: Whether a new repository is visible to its owner alone.
        to_folder: A new folder to write what would be published to; nothing is published then, and no login is needed.
        trust: Whether to execute code that the directory names even if this user's runs did not write it.

    Raises:
        HubError: The name is none, the Hub refuses it, or the folder exists or cannot be made.
        MissingExtra: huggingface_hub is not installed.
        NoRunError: There is no such run or checkpoint.
        MissingPackageError: The packages that write videos are not installed.
        UntrustedError: The directory names such code, without ``trust``.
        DeviceError: This machine has no such device.
    """
    check_name(name)
    resolve_device(device)
    source = folder_of_policy(run_dir, policy)
    snapshot = read_snapshot(source, checkpoint)
    require_trusted(source, snapshot, trust=trust)
    if video:
        check_extra("video", "a video")
    if to_folder is None:
        api = _library().HfApi(endpoint=_endpoint())
        # First, because the evaluation takes time: whether one is logged in, and the name is one that the Hub takes.
        with _refusals(name):
            api.whoami()  # The next call accepts an old repository even without a login.
            api.create_repo(name, private=private, exist_ok=True)
    with contextlib.ExitStack() as held:
        if to_folder is None:
            folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="rollmill-push-")))
        else:
            folder = held.enter_context(_made(Path(to_folder)))
        role = role_of(source, snapshot.env)
        with one_thread():
            lineup = None
            if role is not None:  # The others of its run play the agents that it has not learned to play.
                lineup = lineup_of_run(
                    role.run_dir,
                    device=device,
                    seed=seed,
                    deterministic=deterministic,
                    trust=trust,
                    own={role.policy: snapshot.checkpoint},
                )
            result = evaluate_snapshot(
                snapshot,
                episodes=episodes,
                seed=seed,
                deterministic=deterministic,
                device=device,
                video=folder / _VIDEO if video else None,
                lineup=lineup,
                of_player=None if role is None else role.policy,
            )
        write_folder(folder, name, source, snapshot, result)
        if to_folder is not None:
            return Published(name, str(folder), result)
        with _refusals(name):
            api.upload_folder(
                repo_id=name,
                folder_path=folder,
                commit_message="Publish an agent of Rollmill",
                # What an earlier push has left would be taken for a part of this agent.
                delete_patterns=["checkpoints/*", SPACES_FILE, _VIDEO],
            )
    return Published(name, f"{api.endpoint}/{name}", result)


@contextlib.contextmanager
def _made(folder: Path) -> Iterator[Path]:
    """Make a new folder, which is removed again where the block raises."""
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise HubError(f"the folder {folder} cannot be made ({error.strerror}): give a new one") from error
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


@contextlib.contextmanager
def _refusals(name: str) -> Iterator[None]:
    """Turn the exceptions of the Hub's client, and those of a missing network, into :class:`HubError`."""
    try:
        yield
    except Exception as error:
        said = str(error).rstrip(".")
        is_of_hub = type(error).__module__.partition(".")[0] == "huggingface_hub"
        if not is_of_hub or isinstance(error, ConnectionError):
            raise HubError(
                f"the Hub cannot be reached to write {name}: {said}. Check the network and HF_ENDPOINT"
            ) from error
        raise HubError(
            f"the Hub does not take {name}: {said}. Log in with a token that may write (hf auth login, or HF_TOKEN)"
        ) from error


def fetch(address: str) -> Path:
    """Download a published agent, or find it in the cache.

    Args:
        address: ``hf://USER/NAME``, with ``@REVISION`` for a branch, a tag or a commit.

    Returns:
        A run directory, which is not to be written to.

    Raises:
        HubError: There is none, or it cannot be reached.
        MissingExtra: huggingface_hub is not installed.
    """
    library = _library()
    name, _, revision = address.removeprefix(SCHEME).partition("@")
    check_name(name)
    try:
        return Path(
            library.snapshot_download(
                name,
                revision=revision or None,
                allow_patterns=["config.json", SPACES_FILE, "checkpoints/*.pt"],
                endpoint=_endpoint(),
            )
        )
    except Exception as error:  # see `push`
        raise HubError(f"{address} cannot be fetched from the Hugging Face Hub: {error}") from error
