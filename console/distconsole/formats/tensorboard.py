"""A run as TensorBoard event files, by the package ``tensorboard`` (an extra). It needs no TensorFlow.

In the folder: ``RUN`` with what is reduced over the ranks, ``RUN/lowest`` and ``RUN/highest`` with
the ranks' band under the same tags, and ``RUN/ranks`` with what each rank and GPU did. The files
have names of their own, so that a second export replaces the first.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path

from msgspec import UNSET
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

from distconsole.formats.outlets import FileFolder, NewFile, writable
from distconsole.formats.settings import settings_of
from distconsole.model.names import count_text
from distconsole.model.run_events import (
    GpuSample,
    Metric,
    PlanMade,
    RunEnded,
    RunEvents,
    RunFinding,
    Window,
)
from distconsole.runs.present import present
from distconsole.runs.timeline import RunTimeline

FILE_VERSION = "brain.Event:2"
MAX_RANKS = 256
"""Ranks with curves of their own; more make TensorBoard's page unusable."""


class TensorBoardFolder(FileFolder["EventFile"]):
    """A folder that ``tensorboard --logdir`` shows."""

    def __init__(self, folder: Path, *, live: bool = False) -> None:
        super().__init__(folder, live=live)
        self._timeline = RunTimeline()
        self._values = self._findings = self._second = 0

    def take(self, event: RunEvents) -> None:
        match event:
            case Metric():
                self._metric(event)
            case Window():
                self._timeline.apply(event)
                self._window(event)
            case GpuSample():
                self._gpu(event)
            case PlanMade():
                self._timeline.apply(event)
                self._configuration(event)
            case RunFinding():
                self._finding(event)
            case RunEnded():
                words = f"{event.state}, exit code {event.exit_code}, {event.seconds:.1f} s"
                self._file("", event).text("end", words, 0, event.t)
            case _:
                pass

    def close(self) -> str:
        for file in self.files.values():
            file.put()
        return f"{count_text(self._values, 'value')} written to {self.folder}; tensorboard --logdir shows them"

    def _metric(self, event: Metric) -> None:
        for place, value in (("", event.value), ("lowest", event.min), ("highest", event.max)):
            self._scalar(event, place, event.name, value, event.step)

    def _window(self, event: Window) -> None:
        if event.step_ms_mean is not None and event.rank < MAX_RANKS:
            tag = f"step_ms/rank_{event.rank:04}"
            self._scalar(event, "ranks", tag, event.step_ms_mean, event.step)
        if int(event.t) <= self._second:
            return
        self._second = int(event.t)
        step = self._timeline.steps or 0
        figures = present(self._timeline, event.t)
        if figures.samples_s is not None:
            self._scalar(event, "", "throughput/samples_s", figures.samples_s, step)
        known = [v.step_ms_mean for v in figures.at_work if v.step_ms_mean is not None]
        if known:
            reduced = {"": sum(known) / len(known), "lowest": min(known), "highest": max(known)}
            for place, value in reduced.items():
                self._scalar(event, place, "throughput/step_ms", value, step)

    def _gpu(self, event: GpuSample) -> None:
        if event.rank is UNSET:
            whose = f"{event.host}_gpu_{event.gpu}"
        elif event.rank >= MAX_RANKS:
            return
        else:
            whose = f"rank_{event.rank:04}"
        figures = {"util": event.util, "mem_used": event.mem_used, "power_w": event.power_w}
        for name, value in figures.items():
            if value is not None:
                step = self._timeline.steps or 0
                self._scalar(event, "ranks", f"gpu_{name}/{whose}", value, step)

    def _configuration(self, plan: PlanMade) -> None:
        settings = settings_of(plan)
        rows = [f"| {name} | `{_cell(value)}` |" for name, value in settings]
        file = self._file("", plan)
        file.text("configuration", "\n".join(["| | |", "|---|---|", *rows]), 0, plan.t)
        file.summary(hparams.hparams_pb(dict(settings), trial_id=plan.run), 0, plan.t)

    def _finding(self, event: RunFinding) -> None:
        seen = f"\n\n```\n{event.seen}\n```" if event.seen else ""
        words = f"**{event.severity}** {event.summary}{seen}\n\n{event.hint}"
        self._file("", event).text("findings", words, self._findings, event.t)
        self._findings += 1

    def _scalar(self, event: RunEvents, place: str, tag: str, value: float, step: int) -> None:
        self._file(place, event).scalar(tag, value, step, event.t)
        self._values += 1

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
        value_of = summary_pb2.Summary.Value(tag=tag, simple_value=_single(value))
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


def _single(value: float) -> float:
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("`", "'").replace("\n", " ")
