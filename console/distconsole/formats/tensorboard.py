"""A run as TensorBoard event files, by the package ``tensorboard`` (an extra). It needs no TensorFlow.

In the folder: ``RUN`` with what is reduced over the ranks, ``RUN/lowest`` and ``RUN/highest`` with
the ranks' band under the same tags, and ``RUN/ranks`` with what each rank and GPU did. The files
have names of their own, so that a second export replaces the first.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path

from tensorboard.compat.proto import (
    event_pb2,
    summary_pb2,
    tensor_pb2,
    tensor_shape_pb2,
    types_pb2,
)
from tensorboard.plugins.hparams import summary_v2 as hparams
from tensorboard.plugins.text import metadata as text_metadata
from tensorboard.summary.writer.record_writer import RecordWriter

from distconsole.formats.curves import Curves, end_text, finding_text
from distconsole.formats.outlets import FileFolder, NewFile, writable
from distconsole.formats.settings import settings_of
from distconsole.model.names import count_text
from distconsole.model.run_events import PlanMade, RunEnded, RunEvents, RunFinding

FILE_VERSION = "brain.Event:2"


class TensorBoardFolder(FileFolder["EventFile"]):
    """A folder that ``tensorboard --logdir`` shows."""

    def __init__(self, folder: Path, *, live: bool = False) -> None:
        super().__init__(folder, live=live)
        self._curves = Curves()
        self._values = self._findings = 0

    def take(self, event: RunEvents) -> None:
        for point in self._curves.of(event):
            self._file(point.place, event).scalar(point.tag, point.value, point.step, event.t)
            self._values += 1
        if isinstance(event, PlanMade):
            settings = settings_of(event)
            cell = str.maketrans({"|": "\\|", "`": "'", "\n": " "})
            rows = [f"| {name} | `{value.translate(cell)}` |" for name, value in settings]
            file = self._file("", event)
            file.text("configuration", "\n".join(["| | |", "|---|---|", *rows]), 0, event.t)
            file.summary(hparams.hparams_pb(dict(settings), trial_id=event.run), 0, event.t)
        elif isinstance(event, RunFinding):
            self._file("", event).text("findings", finding_text(event), self._findings, event.t)
            self._findings += 1
        elif isinstance(event, RunEnded):
            self._file("", event).text("end", end_text(event), 0, event.t)

    def close(self) -> str:
        for file in self.files.values():
            file.put()
        return f"{count_text(self._values, 'value')} written to {self.folder}; tensorboard --logdir shows them"

    def _file(self, place: str, event: RunEvents) -> EventFile:
        file = self.files.get(place)
        if file is None:
            folder = self.folder / event.run / place
            with writable(folder):
                folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"events.out.tfevents.0.distconsole.{event.run}"
            file = self.files[place] = EventFile(path, event.t, live=self.live)
        return file


class EventFile(NewFile):
    """One file of events, of which the first is at ``t`` (UNIX seconds)."""

    def __init__(self, path: Path, t: float, *, live: bool) -> None:
        super().__init__(path, live=live)
        self._records = RecordWriter(self.file)
        self._write(event_pb2.Event(wall_time=t, file_version=FILE_VERSION))

    def scalar(self, tag: str, value: float, step: int, t: float) -> None:
        """Add a value; one that fits no 32-bit float becomes infinite, as TensorBoard would have it."""
        try:
            single = float(struct.unpack("f", struct.pack("f", value))[0])
        except OverflowError:
            single = math.copysign(math.inf, value)
        value_of = summary_pb2.Summary.Value(tag=tag, simple_value=single)
        self.summary(summary_pb2.Summary(value=[value_of]), step, t)

    def text(self, tag: str, markdown: str, step: int, t: float) -> None:
        tensor = tensor_pb2.TensorProto(
            dtype=types_pb2.DT_STRING,
            string_val=[markdown.encode("utf-8", "replace")],
            tensor_shape=tensor_shape_pb2.TensorShapeProto(),
        )
        about = text_metadata.create_summary_metadata(display_name="", description="")
        value = summary_pb2.Summary.Value(tag=tag, metadata=about, tensor=tensor)
        self.summary(summary_pb2.Summary(value=[value]), step, t)

    def summary(self, summary: summary_pb2.Summary, step: int, t: float) -> None:
        self._write(event_pb2.Event(wall_time=t, step=step, summary=summary))

    def _write(self, event: event_pb2.Event) -> None:
        with writable(self.path):
            self._records.write(event.SerializeToString())
