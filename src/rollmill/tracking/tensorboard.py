"""TensorBoard: event files in the run's directory."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollmill.tracking.base import FileKind, TrackedRun

_FOLDER = "tensorboard"
_CONFIG_TAG = "run/settings"


class TensorBoardTracker:
    """Writes scalars and the settings. Files stay in the run's directory, where they are anyway.

    Each of several policies has events of its own, in its directory.

    Args:
        run: The run.

    Attributes:
        id: None: a resumed run writes a further file into the same folder.
        place: Empty: it is always the same.
    """

    id: str | None = None
    place = ""

    def __init__(self, run: TrackedRun) -> None:
        self._events: dict[str | None, _EventWriter] = {
            None: _EventWriter(run.directory / _FOLDER, run.resume_at_steps),
            **{
                name: _EventWriter(policy.directory / _FOLDER, policy.resume_at_steps)
                for name, policy in run.policies.items()
            },
        }
        rows = [f"| `{key}` | {value} |" for key, value in run.config.items()]
        text = "\n".join(["| setting | value |", "|---|---|", *rows])
        self._events[None].write_text(_CONFIG_TAG, text, run.resume_at_steps or 0)

    def log(self, numbers: Mapping[str, float], agent_steps: int, policy: str | None) -> None:
        """Write scalars, which are on disk when this returns."""
        self._events[policy].write(agent_steps, numbers)

    def log_file(self, path: Path, kind: FileKind, name: str, agent_steps: int, policy: str | None) -> None:
        """Do nothing: TensorBoard shows neither mp4 files nor checkpoints."""

    def finish(self, ended_by: str) -> None:
        """Close the files."""
        for events in self._events.values():
            events.close()


def tensorboard_tag(name: str) -> str:
    """TensorBoard's name of a metric: those without a group share one."""
    return name if "/" in name else f"run/{name}"


class _EventWriter:
    """TensorBoard's events through its own record format: no torch, no TensorFlow.

    Not through its ``EventFileWriter``, whose thread keeps events back for seconds, and dies of a full disk unseen.
    """

    def __init__(self, directory: Path, resume_at_steps: int | None) -> None:
        # Imported here because it takes 0.4 s.
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary, self._metadata = Event, Summary, SummaryMetadata
        self._tensor, self._string = TensorProto, DT_STRING
        directory.mkdir(parents=True, exist_ok=True)
        # TensorBoard knows its files by this beginning and reads them in the order of their names.
        name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        self._records = RecordWriter((directory / name).open("xb"))
        self._put(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if resume_at_steps is not None:
            # Makes TensorBoard hide what earlier files say of later steps.
            start = SessionLog(status=SessionLog.START)
            self._put(Event(wall_time=time.time(), step=resume_at_steps + 1, session_log=start))

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        values = [self._summary.Value(tag=tensorboard_tag(name), simple_value=value) for name, value in scalars.items()]
        self._put(self._event(wall_time=time.time(), step=step, summary=self._summary(value=values)))

    def write_text(self, tag: str, text: str, step: int) -> None:
        plugin = self._metadata(plugin_data=self._metadata.PluginData(plugin_name="text"))
        tensor = self._tensor(dtype=self._string, string_val=[text.encode(errors="backslashreplace")])
        value = self._summary.Value(tag=tag, metadata=plugin, tensor=tensor)
        self._put(self._event(wall_time=time.time(), step=step, summary=self._summary(value=[value])))

    def close(self) -> None:
        self._records.close()

    def _put(self, event: Any) -> None:
        self._records.write(event.SerializeToString())
        self._records.flush()
