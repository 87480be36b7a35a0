"""Runs in the services of others, read back by what these services read with."""

import http.server
import json
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import psutil
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

from distconsole.config.paths import runs_dir
from distconsole.errors import UnavailableError
from distconsole.formats.curves import Curves, CurveValue, Tracker
from distconsole.formats.gauges import run_page
from distconsole.formats.otlp import otel_name
from distconsole.formats.outlets import BesideOutlet
from distconsole.model import requests as ask
from distconsole.model.events import Narration
from distconsole.model.requests import ExportFormat
from distconsole.model.run_events import RunEnded, RunEvents, RunFinding
from distconsole.operations import perform
from distconsole.operations.stored.export import export_along
from distconsole.runs.figures import GPU_FIGURES, NODE_FIGURES, STEP_FIGURES
from distconsole.runs.store.store import RunStore
from distconsole.runs.summary import stored_events
from distconsole.runs.timeline import RunTimeline
from fakes.journals import START, Journal
from fakes.sessions import no_session
from suite.neighbours import neighbour
from suite.programs import run_to_end

RUN = "digits-1121-a3f9"


@pytest.fixture
def failed() -> RunStore:
    store = RunStore(runs_dir())
    Journal(fails=2, slow=3).write(store)
    return store


@pytest.fixture
def events(failed: RunStore) -> list[RunEvents]:
    """What is stored of the run."""
    with failed.open(failed.resolve("last")) as run_file:
        return list(stored_events(run_file))


def done(request: ask.Request) -> list[str]:
    events = list(perform(request, no_session))
    return [event.text for event in events if isinstance(event, Narration)]


class Collector:
    """What an OpenTelemetry collector is to those who send: it keeps what came."""

    def __init__(self) -> None:
        self.metrics: list[ExportMetricsServiceRequest] = []
        self.logs: list[ExportLogsServiceRequest] = []
        self.tokens: set[str | None] = set()
        self.refuses = 0
        collector = self

        class Taker(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.tokens.add(self.headers["Authorization"])
                status = 200
                if (
                    self.path == "/v1/metrics"
                    and collector.refuses
                    and len(collector.metrics) % 4 == 3
                ):
                    collector.refuses -= 1
                    status = 400
                elif self.path == "/v1/metrics":
                    collector.metrics.append(ExportMetricsServiceRequest.FromString(body))
                else:
                    collector.logs.append(ExportLogsServiceRequest.FromString(body))
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Taker)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    collector = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Bearer%20abc")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=lab")
    thread = threading.Thread(target=collector.server.serve_forever, args=(0.01,))
    thread.start()
    yield collector
    collector.server.shutdown()
    thread.join()
    collector.server.server_close()


def pairs(attributes: object) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in attributes:  # type: ignore[attr-defined]
        assert isinstance(each, KeyValue)
        found[each.key] = each.value.string_value or str(each.value.int_value)
    return found


def test_a_collector_gets_the_gauges_and_what_ranks_printed(
    failed: RunStore, collector: Collector
) -> None:
    (told,) = done(ask.Export("last", ExportFormat.OTLP))
    assert told.endswith("sent to the collector")
    assert collector.tokens == {"Bearer abc"}
    resource = pairs(collector.metrics[0].resource_metrics[0].resource.attributes)
    assert (resource["service.name"], resource["distconsole.run.id"]) == ("distconsole", RUN)
    assert resource["deployment.environment.name"] == "lab"
    gauges = {
        metric.name: metric
        for request in collector.metrics
        for metric in request.resource_metrics[0].scope_metrics[0].metrics
    }
    assert gauges["distconsole.gpu.power"].unit == "W"
    assert gauges["distconsole.rank.samples"].unit == "{sample}/s"
    assert gauges["distconsole.rank.step"].unit == "s"
    points = gauges["distconsole.rank.last_step"].gauge.data_points
    assert {pairs(point.attributes)["rank"] for point in points} == {"0", "1", "2", "3"}
    assert {pairs(point.attributes)["host.name"] for point in points} == {"node1", "node2"}
    times = [
        request.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points[0].time_unix_nano
        for request in collector.metrics
    ]
    assert len(times) > 5
    assert times == sorted(times)
    logs = [
        record
        for request in collector.logs
        for record in request.resource_logs[0].scope_logs[0].log_records
    ]
    printed = [record for record in logs if record.event_name == "distconsole.output"]
    assert {pairs(record.attributes)["log.iostream"] for record in printed} == {"stderr", "stdout"}
    (end,) = (record for record in logs if record.event_name == "distconsole.end")
    assert end.body.string_value.startswith("failed, exit code 1")
    assert end.severity_text == "ERROR"
    found = [record for record in logs if record.event_name == "distconsole.finding"]
    assert "run.first_failure" in {
        pairs(record.attributes)["distconsole.check"] for record in found
    }


def test_a_page_of_gauges_that_was_taken_in_part_goes_on_with_the_rest(
    events: list[RunEvents], collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distconsole.formats.otlp.POINTS_A_REQUEST", 10)
    collector.refuses = 2
    *_, told = export_along(iter(events), [ExportFormat.OTLP])
    assert isinstance(told, Narration)
    assert (collector.refuses, told.text.endswith("sent to the collector")) == (0, True)
    points = [
        (metric.name, point.time_unix_nano, *sorted(pairs(point.attributes).items()))
        for request in collector.metrics
        for metric in request.resource_metrics[0].scope_metrics[0].metrics
        for point in metric.gauge.data_points
    ]
    assert len(points) == len(set(points)) == int(told.text.split()[0].replace(",", ""))


def test_every_gauge_of_prometheus_has_one_name_for_a_collector(failed: RunStore) -> None:
    timeline = RunTimeline()
    with failed.open(failed.resolve("last")) as run_file:
        for event in stored_events(run_file):
            if not isinstance(event, RunEnded):
                timeline.apply(event)
    names = set(run_page(timeline, timeline.last_t or 0.0).families)
    for of, figures in (("rank", STEP_FIGURES), ("gpu", GPU_FIGURES), ("node", NODE_FIGURES)):
        names |= {f"distconsole_{of}_{each.gauge}" for each in figures if each.gauge}
    assert len(names) > 35
    assert len({otel_name(name)[0] for name in names}) == len(names)
    assert otel_name("distconsole_node_network_receive_bytes_per_second") == (
        "distconsole.node.network_receive",
        "By/s",
    )


def test_a_collector_that_is_not_there_is_said(
    failed: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    with pytest.raises(UnavailableError, match="does not take") as caught:
        done(ask.Export("last", ExportFormat.OTLP))
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in caught.value.hint
    held = [each.path for each in psutil.Process().open_files()]
    assert not [path for path in held if path.startswith(str(failed.folder))]


@pytest.mark.parametrize("form", [ExportFormat.WANDB, ExportFormat.MLFLOW, ExportFormat.OTLP])
def test_a_format_whose_package_is_missing_says_how_to_get_it(
    form: ExportFormat, failed: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("wandb", "mlflow", "opentelemetry", f"distconsole.formats.{form}"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UnavailableError) as caught:
        done(ask.Export("last", form))
    assert caught.value.hint == f"pip install 'distconsole[{form}]'"


FOUND = RunFinding(t=1.0, run="r", check="c", severity="warn", summary="s")  # type: ignore[arg-type]


class Stuck:
    """A service that does not answer until it is let go, and then refuses."""

    def __init__(self) -> None:
        self.go, self.flushed = threading.Event(), threading.Event()
        self.took = 0

    def take(self, _event: RunEvents) -> None:
        self.go.wait()
        self.took += 1
        raise UnavailableError("it is down", "start it")

    def flush(self) -> None:
        self.flushed.set()

    def close(self) -> str:
        return "closed"

    def abandon(self) -> None:
        pass


class Refusing(Stuck):
    """A service that refuses what is left for it at the end, too."""

    def close(self) -> str:
        raise UnavailableError("it is down", "start it")


def test_who_follows_a_run_does_not_wait_for_a_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distconsole.formats.outlets.MAX_WAITING", 10)
    stuck, said = Stuck(), SimpleQueue[str]()
    beside = BesideOutlet(stuck, said.put)
    for _ in range(20):
        beside.take(FOUND)
    stuck.go.set()
    with pytest.raises(UnavailableError) as caught:
        beside.close()
    assert 10 <= stuck.took <= 11
    left = f"{stuck.took} refusals, {20 - stuck.took} events left out"
    assert caught.value.message == f"not all was written to the service: {left}"
    assert (said.get(), said.empty()) == ("it is down; it is tried again: start it", True)


def test_a_run_that_never_rests_is_told_regularly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distconsole.formats.outlets.FLUSH_SECONDS", 0.02)
    service = Refusing()
    service.go.set()
    beside = BesideOutlet(service, lambda _: None)
    while not service.flushed.is_set():
        beside.take(FOUND)
    with pytest.raises(UnavailableError, match="refusal"):
        beside.close()


def test_a_run_shows_itself_while_it_goes_on_and_a_service_that_is_down_is_a_warning(
    events: list[RunEvents], collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = list(export_along(iter(events), [ExportFormat.OTLP]))
    assert told[:-1] == events
    assert isinstance(told[-1], Narration)
    assert told[-1].text.endswith("sent to the collector")
    assert collector.metrics
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.01")
    *followed, said, last = export_along(iter(events), [ExportFormat.OTLP])
    assert [each for each in followed if not isinstance(each, Narration)] == events
    assert isinstance(last, Narration)
    assert "not all was written to the service" in last.text
    assert last.severity == "warn"
    assert said != last


def test_a_run_that_ends_well_ends_with_an_error_if_a_service_lacks_some_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = RunStore(runs_dir())
    Journal().write(store)
    with store.open(store.resolve("last")) as run_file:
        events = list(stored_events(run_file))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.01")
    told: list[object] = []
    with pytest.raises(UnavailableError, match="not all was written to the service"):
        told.extend(export_along(iter(events), [ExportFormat.OTLP]))
    assert [each for each in told if not isinstance(each, Narration)] == events


class Takes(Tracker):
    """A service that takes a few values at a time, and raises ``error`` at every third."""

    def __init__(self, error: Exception, *, heals: bool = True) -> None:
        super().__init__()
        self.error, self.heals, self.turn = error, heals, 0
        self.got: list[CurveValue] = []
        self.begun = self.ended = 0

    def begin(self, event: RunEvents, name: str, settings: dict[str, str]) -> None:
        self.begun += 1
        if self.begun == 1:
            raise self.error

    def send(self, values: list[CurveValue]) -> None:
        while values:
            self.turn += 1
            if self.turn % 3 == 0 or not self.heals:
                raise self.error
            self.got += values[:7]
            del values[:7]

    def end(self, end: RunEnded | None, note: str) -> None:
        self.ended += 1


@pytest.mark.parametrize("error", [BrokenPipeError("gone"), RuntimeError(), KeyError("x")])
def test_what_a_service_did_not_take_is_sent_again_and_nothing_twice(
    events: list[RunEvents], error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distconsole.formats.curves.BATCH", 20)
    monkeypatch.setattr("distconsole.formats.outlets.FLUSH_SECONDS", 0.0)
    said: list[str] = []
    service = Takes(error)
    beside = BesideOutlet(service, said.append, "wandb")
    for event in events:
        beside.take(event)
    curves = Curves()
    wanted = [point.value for event in events for point in curves.of(event)]
    with suppress(UnavailableError):  # if it is the last one that is refused
        beside.close()
    assert [each.value for each in service.got] == wanted[: len(service.got)]
    assert len(service.got) >= len(wanted) - 14
    assert service.ended == 1
    words = f": {error}" if str(error) else ""
    assert said == [f"wandb fails: {type(error).__name__}{words}; it is tried again"]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (BrokenPipeError(), "BrokenPipeError"),
        (ImportError("No module named 'zstandard'"), "ImportError: No module named 'zstandard'"),
    ],
)
def test_a_service_that_takes_nothing_at_the_end_is_an_error_and_says_why(
    events: list[RunEvents], error: Exception, words: str
) -> None:
    service, said = Takes(error, heals=False), list[str]()
    beside = BesideOutlet(service, said.append, "wandb")
    for event in events:
        beside.take(event)
    with pytest.raises(UnavailableError, match="not all was written"):
        beside.close()
    assert service.ended == 1
    assert said == [f"wandb fails: {words}; it is tried again"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_service_that_ends_its_thread_has_not_taken_all() -> None:
    """Whatever passes by the guard of the thread, such as a package's SystemExit."""

    class Leaving(Stuck):
        def take(self, _event: RunEvents) -> None:
            raise SystemExit

    beside = BesideOutlet(Leaving(), lambda _: None)
    beside.take(FOUND)
    with pytest.raises(UnavailableError, match="its package has ended the thread"):
        beside.close()


def test_a_stored_run_is_tried_again_where_a_service_cannot_import_something(
    failed: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Takes(ImportError("No module named 'zstandard'"), heals=False)
    monkeypatch.setattr("distconsole.operations.stored.export._make_extra", lambda *_: service)
    with pytest.raises(UnavailableError, match="wandb fails: ImportError: No module"):
        done(ask.Export("last", ExportFormat.WANDB))
    assert service.begun > 1


def test_a_service_that_refuses_to_begin_is_not_tried_at_every_event() -> None:
    class Down(Takes):
        def begin(self, event: RunEvents, name: str, settings: dict[str, str]) -> None:
            self.begun += 1
            raise self.error

    service = Down(BrokenPipeError())
    for _ in range(300):
        with suppress(BrokenPipeError):
            service.take(FOUND)
    assert service.begun == 1
    with pytest.raises(BrokenPipeError):
        service.flush()
    assert service.begun == 2


def test_a_run_that_cannot_be_shown_is_not_started(
    failed: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.setitem(sys.modules, "distconsole.formats.otlp", None)
    script = tmp_path / "x.py"
    script.write_text("")
    with pytest.raises(UnavailableError, match="otlp"):
        done(ask.Run(str(script), export="otlp"))


def test_a_service_that_never_answers_does_not_keep_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("distconsole.formats.outlets.LEAVING_SECONDS", 0.01)
    stuck = Stuck()
    beside = BesideOutlet(stuck, lambda _: None)
    beside.take(FOUND)
    with pytest.raises(UnavailableError, match=r"service: it does not answer$"):
        beside.close()
    stuck.go.set()
    beside._thread.join()


def run_with(packages: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these packages; what it exports comes out of this test's store."""
    return run_to_end(
        [sys.executable, *words], env={**os.environ, "PYTHONPATH": str(packages), **variables}
    )


def export_with(packages: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_with(packages, "-m", "distconsole", "export", "last", *words, **variables)


FAULTY = """
import runpy
{patch}
count = 0
def faulty(*arguments, **named):
    global count
    count += 1
    if count {when}:
        raise BrokenPipeError(32, "Broken pipe")
    return real(*arguments, **named)
{put}
runpy.run_module("distconsole", run_name="__main__")
"""
WANDB_LOG = {"patch": "import wandb; real = wandb.Run.log", "put": "wandb.Run.log = faulty"}
MLFLOW_LOG = {
    "patch": "from mlflow.tracking import MlflowClient; real = MlflowClient.log_batch",
    "put": "MlflowClient.log_batch = faulty",
}


def export_faulty(
    packages: Path, patch: dict[str, str], when: str, *words: str
) -> subprocess.CompletedProcess[str]:
    """As ``export_with``, by a package of which one function raises in some of its calls."""
    program = FAULTY.format(when=when, **patch)
    return run_with(packages, "-c", program, "export", "last", *words, WANDB_MODE="offline")


def read_with(packages: Path, program: str, *words: str) -> list[str]:
    ran = run_with(packages, "-c", program, *words)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


READ_MLFLOW = """
import sys, logging; logging.disable()
from mlflow.tracking import MlflowClient
client = MlflowClient(tracking_uri=f"sqlite:///{sys.argv[1]}/mlflow.db")
(experiment,) = client.search_experiments(filter_string="name = 'distconsole'")
(run,) = client.search_runs([experiment.experiment_id])
tags, metrics = run.data.tags, sorted(m for m in run.data.metrics if "rank_0003" in m)
print(run.info.status, run.info.end_time > run.info.start_time, tags["distconsole.run"])
print(run.data.params["launcher"])
print(tags["mlflow.note.content"].splitlines()[0])
loss = client.get_metric_history(run.info.run_id, "loss")
print(len(loss), loss[0].step, loss[-1].step, metrics)
"""


def test_mlflow_reads_a_run_back(failed: RunStore, tmp_path: Path) -> None:
    packages = neighbour("mlflow", "mlflow-skinny", "sqlalchemy", "alembic")
    folder = str(tmp_path / "ml")
    ran = export_faulty(packages, MLFLOW_LOG, "in (1, 3)", "--format", "mlflow", "-o", folder)
    assert ran.returncode == 0, ran.stderr
    assert "MLflow refuses: [Errno 32] Broken pipe; it is tried again" in ran.stderr
    assert "written to MLflow's experiment distconsole" in ran.stderr
    head, params, note, loss = read_with(packages, READ_MLFLOW, folder)
    assert head == f"FAILED True {RUN}"
    assert params == "torch"
    assert note.startswith("failed, exit code 1")
    assert loss.startswith("120 9 1199 "), "all of it, and nothing twice"
    assert "step_ms/rank_0003" in loss


READ_WANDB = """
import sys, json
from wandb.proto import wandb_internal_pb2 as pb
for line in open(sys.argv[1]).read().split():
    record = pb.Record.FromString(bytes.fromhex(line))
    kind = record.WhichOneof("record_type")
    told = {}
    if kind == "run":
        told = {"id": record.run.run_id, "project": record.run.project, "notes": record.run.notes}
        told |= {item.key: item.value_json for item in record.run.config.update}
    elif kind == "history":
        told = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
    elif kind == "exit":
        told = {"code": record.exit.exit_code}
    print(json.dumps([kind, told]))
"""


def log_records(content: bytes) -> Iterator[bytes]:
    """Yield the records of an offline run: LevelDB's log format behind a header of 7 bytes, blocks of 32 KiB."""
    at, record = 7, b""
    while at + 7 <= len(content):
        room = 32768 - at % 32768
        if room < 7:
            at += room
            continue
        size, kind = struct.unpack_from("<HB", content, at + 4)
        record += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or its last part
            yield record
            record = b""


def test_an_offline_run_of_weights_and_biases_reads_back(failed: RunStore, tmp_path: Path) -> None:
    packages = neighbour("wandb", "wandb")
    ran = export_faulty(
        packages, WANDB_LOG, "== 4", "--format", "wandb", "-o", str(tmp_path / "wb")
    )
    assert ran.returncode == 0, ran.stderr
    assert "wandb fails: BrokenPipeError: [Errno 32] Broken pipe; it is tried" in ran.stderr
    assert "wandb sync sends it" in ran.stderr
    told = wandb_records(packages, tmp_path / "wb")
    runs = [about for kind, about in told if kind == "run"]
    assert (runs[0]["id"], runs[0]["project"]) == (RUN, "distconsole")
    assert json.loads(runs[0]["launcher"]) == "torch"
    assert runs[-1]["notes"].startswith("failed, exit code 1")
    rows = [about for kind, about in told if kind == "history"]
    losses = [row for row in rows if "loss" in row]
    assert {"loss", "loss_lowest", "loss_highest", "step"} <= set(losses[0])
    assert START <= float(losses[0]["_timestamp"]) < START + 60
    assert ["exit", {"code": 1}] in told
    kept = [(row["step"], *each) for row in rows for each in row.items() if each[0][0] != "_"]
    figures = [each for each in kept if each[1] != "step"]
    assert (len(losses), len(figures), len(set(figures))) == (120, 1200, 1200)
    down = export_faulty(
        packages, WANDB_LOG, "> 4", "--format", "wandb", "-o", str(tmp_path / "down")
    )
    assert down.returncode == 1
    assert "Traceback" not in down.stderr
    assert down.stderr.splitlines()[-1].count("wandb fails: BrokenPipeError") == 1


def wandb_records(packages: Path, folder: Path) -> list[tuple[str, dict[str, Any]]]:
    (kept,) = (folder / "wandb").glob("offline-run-*/*.wandb")
    lines = folder / "records"
    lines.write_text("\n".join(each.hex() for each in log_records(kept.read_bytes()) if each))
    return [json.loads(line) for line in read_with(packages, READ_WANDB, str(lines))]


def test_weights_and_biases_without_a_key_asks_nobody(failed: RunStore) -> None:
    ran = export_with(neighbour("wandb", "wandb"), "--format", "wandb", WANDB_MODE="online")
    assert ran.returncode == 1
    assert "has no API key here" in ran.stderr
    assert "WANDB_MODE=offline" in ran.stderr
