"""Runs written down for other programs, read back as those programs read them."""

import csv
import http.client
import io
import math
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from distconsole.config.paths import runs_dir
from distconsole.errors import ConfigError, UnavailableError
from distconsole.formats.gauges import MAX_LABEL_CHARS, GaugePage, run_page
from distconsole.formats.outlets import LineFile
from distconsole.formats.tables import CsvLines, make_table
from distconsole.model import requests as ask
from distconsole.model.events import Event, Narration, TextMade
from distconsole.model.findings import Severity
from distconsole.model.names import RunId
from distconsole.model.requests import ExportFormat, ExportTable
from distconsole.model.run_events import Metric, RunFinding, Window
from distconsole.operations import Control, perform
from distconsole.operations.stored.prometheus import HostGauges
from distconsole.runs.store.store import RunStore
from distconsole.runs.summary import stored_events
from distconsole.runs.timeline import RunTimeline
from fakes import scenes
from fakes.journals import START, Journal
from fakes.run_events import timeline_of
from fakes.sessions import no_session

HOSTILE = '"><script>alert(1)</script>\\{}\x1b[31m'


def done(request: ask.Request, control: Control | None = None) -> list[Event]:
    return list(perform(request, no_session, control))


def text_of(request: ask.Request) -> str:
    return "\n".join(event.text for event in done(request) if isinstance(event, TextMade)) + "\n"


def csv_rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


@pytest.fixture
def store() -> RunStore:
    return RunStore(runs_dir())


@pytest.fixture
def failed(store: RunStore) -> RunStore:
    Journal(fails=2, slow=3).write(store)
    return store


def test_json_lines_in_a_file_are_those_on_stdout(failed: RunStore, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    (told,) = done(ask.Export("last", output=str(path)))
    assert isinstance(told, Narration)
    assert path.read_text() == text_of(ask.Export("last"))
    events = [msgspec.json.decode(line) for line in path.read_text().splitlines()]
    assert (events[0]["event"], events[-1]["event"]) == ("plan", "end")
    assert {event["run"] for event in events} == {"digits-1121-a3f9"}


def test_tables_are_files_of_a_folder(failed: RunStore, tmp_path: Path) -> None:
    done(ask.Export("last", ExportFormat.CSV, str(tmp_path / "tables")))
    tables = {path.stem: csv_rows(path.read_text()) for path in (tmp_path / "tables").iterdir()}
    assert set(tables) == {table.value for table in ExportTable} - {"numbers"}
    assert len(tables["windows"]) == 4 * 60
    assert tables["windows"][0]["forward_ms"] == "15.0"
    slow = [float(row["step_ms_run"]) for row in tables["ranks"]]
    assert slow.index(max(slow)) == 3
    assert [row["state"] for row in tables["ranks"]] == ["killed", "killed", "failed", "killed"]
    assert [row["exit_code"] for row in tables["ranks"]] == ["143", "143", "1", "143"]
    last = tables["metrics"][-1]
    assert (last["name"], last["ranks"]) == ("loss", "4")
    assert float(last["min"]) <= float(last["value"]) <= float(last["max"])
    (first,) = (row for row in tables["findings"] if row["check"] == "run.first_failure")
    assert first["seen"].startswith("Traceback")
    assert {row["phase"] for row in tables["phases"]} >= {"import_torch", "first_step"}


def test_one_table_is_wanted_by_its_name(failed: RunStore, tmp_path: Path) -> None:
    export = ask.Export("last", ExportFormat.CSV, table=ExportTable.GPUS)
    rows = csv_rows(text_of(export))
    assert len(rows) == 4 * 30
    assert {(row["host"], row["gpu"], row["rank"]) for row in rows} == {
        ("node1", "0", "0"), ("node1", "1", "1"), ("node2", "0", "2"), ("node2", "1", "3"),
    }  # fmt: skip


@pytest.mark.parametrize(
    "text", ['=HYPERLINK("http://x")', "+1", "-1", "@x", 'a "quote", and\na line']
)
def test_text_of_a_node_is_no_formula_and_breaks_no_row(text: str) -> None:
    finding = RunFinding(t=1.0, run="r", check="c", severity=Severity.WARN, summary=text)
    lines = CsvLines(make_table(ExportTable.FINDINGS))
    rows = csv_rows("\r\n".join([*lines.beginning(), *lines.of(finding)]))
    assert [row["summary"] for row in rows] == [f"'{text}" if text[0] in "=+-@" else text]


def test_an_export_that_fails_half_way_leaves_nothing(
    failed: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Iterator[Event]:
        yield Metric(
            t=1.0, run="r", name="x", step=1, value=1.0, min=1, max=1, ranks=1, samples=None
        )
        raise ConfigError("the disk is gone")

    monkeypatch.setattr("distconsole.operations.stored.export.follow_run", broken)
    for format_, name in (
        (ExportFormat.JSONL, "a"),
        (ExportFormat.CSV, "b"),
        (ExportFormat.TENSORBOARD, "c"),
    ):
        with pytest.raises(ConfigError):
            done(ask.Export("last", format_, str(tmp_path / name)))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def followed(monkeypatch: pytest.MonkeyPatch, where: str, events: Iterator[Event]) -> None:
    """Have a run that goes on tell ``events``."""
    monkeypatch.setattr(f"distconsole.operations.stored.{where}.follow_run", lambda *_: events)


def step(number: int) -> Metric:
    return Metric(
        t=1.0, run="r", name="x", step=number, value=1.0, min=1, max=1, ranks=1, samples=None
    )


def test_a_disk_that_is_full_while_a_run_is_written_is_an_error_and_no_thread_dies(
    failed: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = threading.Semaphore(0)
    flush = LineFile.flush

    def noted(file: LineFile) -> None:
        tried.release()
        flush(file)

    def events() -> Iterator[Event]:
        yield step(1)
        for _ in range(2):  # what failed once is tried again
            assert tried.acquire(timeout=20)

    monkeypatch.setattr(LineFile, "flush", noted)
    monkeypatch.setattr("distconsole.operations.stored.export.FLUSH_SECONDS", 0.01)
    followed(monkeypatch, "export", events())
    with pytest.raises(ConfigError, match="/dev/full cannot be written: No space left"):
        done(ask.Export("last", output="/dev/full", follow=True))


def test_a_page_that_cannot_be_written_for_a_while_is_said_and_written_again(
    failed: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "folder" / "run.prom"
    path.parent.mkdir()
    told: list[str] = []

    def events() -> Iterator[Event]:
        yield step(1)
        path.parent.rename(tmp_path / "away")
        while not any("tried again" in text for text in told):
            yield step(2)
        (tmp_path / "away").rename(path.parent)
        while not any("is written again" in text for text in told):
            yield step(3)

    followed(monkeypatch, "prometheus", events())
    request = ask.Export(
        "last", ExportFormat.PROMETHEUS, str(path), follow=True, interval_seconds=0.01
    )
    for event in perform(request, no_session):
        assert isinstance(event, Narration)
        told.append(event.text)
    assert told[1:-1] == [
        f"{path} cannot be written: No such file or directory; it is tried again",
        f"{path} is written again",
    ]
    assert "distconsole_run_metric" in path.read_text()


def test_tensorboard_reads_what_is_written(failed: RunStore, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    export = ask.Export("last", ExportFormat.TENSORBOARD, str(tmp_path))
    done(export)
    done(export)  # the second one replaces the first
    read = {}
    for place in ("", "lowest", "highest", "ranks"):
        accumulator = EventAccumulator(
            str(tmp_path / "digits-1121-a3f9" / place), size_guidance={"scalars": 0}
        )
        accumulator.Reload()
        read[place] = accumulator
    metrics = [
        msgspec.json.decode(line) for line in text_of(ask.Export("last")).splitlines() if '"metric"' in line
    ]  # fmt: skip
    for place, field in (("", "value"), ("lowest", "min"), ("highest", "max")):
        scalars = read[place].Scalars("loss")
        assert [(s.step, s.wall_time) for s in scalars] == [(m["step"], m["t"]) for m in metrics]
        assert [s.value for s in scalars] == pytest.approx([m[field] for m in metrics])
    rate = read[""].Scalars("throughput/samples_s")
    assert [each.value for each in rate] == pytest.approx([3 * 640 + 640 / 1.5] * len(rate))
    assert START < rate[0].wall_time < rate[-1].wall_time < START + 70
    tags = read["ranks"].Tags()["scalars"]
    assert {f"step_ms/rank_{rank:04}" for rank in range(4)} <= set(tags)
    assert len(read["ranks"].Scalars("gpu_util/rank_0003")) == 30
    text = read[""].Tensors("configuration")[0]
    assert b"torch.distributed" in text.tensor_proto.string_val[0]
    assert any(b"Traceback" in t.tensor_proto.string_val[0] for t in read[""].Tensors("findings"))
    settings = read[""].SummaryMetadata("_hparams_/session_start_info").plugin_data
    assert b"torch.distributed" in settings.content


def test_without_the_package_the_extra_is_named(
    failed: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "distconsole.formats.tensorboard", None)
    with pytest.raises(UnavailableError, match="tensorboard") as caught:
        done(ask.Export("last", ExportFormat.TENSORBOARD, str(tmp_path)))
    assert caught.value.hint == "pip install 'distconsole[tensorboard]'"


def samples(text: str) -> dict[tuple[str, str], float]:
    """Parse a page; name and the label that matters -> value."""
    return {
        (sample.name, sample.labels.get("rank") or sample.labels.get("state") or ""): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_prometheus_reads_a_run(failed: RunStore, tmp_path: Path) -> None:
    text = text_of(ask.Export("last", ExportFormat.PROMETHEUS))
    found = samples(text)
    assert found["distconsole_rank_step", "3"] == 60 * 20 - 1
    assert found["distconsole_run_state", "failed"] == 1
    assert found["distconsole_run_state", "running"] == 0
    assert found["distconsole_gpu_temperature_celsius", "2"] == 61
    assert 0.7 <= found["distconsole_gpu_utilization_ratio", "2"] <= 0.9
    families = list(text_string_to_metric_families(text))
    assert all(family.type == "gauge" and family.documentation for family in families)
    (loss,) = (f for f in families if f.name == "distconsole_run_metric")
    assert loss.samples[0].labels == {"run": "digits-1121-a3f9", "name": "loss"}
    path = tmp_path / "run.prom"
    done(ask.Export("last", ExportFormat.PROMETHEUS, str(path)))
    assert path.read_text() == text
    assert [each.name for each in tmp_path.iterdir()] == ["run.prom"]


def test_a_run_that_goes_on_has_its_rates(store: RunStore) -> None:
    journal = Journal(ended=False)
    journal.write(store)
    with store.open(RunId(journal.run)) as run_file:
        timeline = timeline_of(stored_events(run_file))
    found = samples(run_page(timeline, START + 67).text())
    assert found["distconsole_rank_samples_per_second", "1"] == 640
    assert found["distconsole_rank_step_seconds", "1"] == pytest.approx(0.05, rel=0.1)
    assert found["distconsole_run_samples_per_second", ""] == 4 * 640
    assert found["distconsole_run_state", "running"] == 1
    later = samples(run_page(timeline, START + 90).text())
    assert not {name for name, _ in later} & {
        "distconsole_run_samples_per_second",
        "distconsole_rank_step_seconds",
        "distconsole_gpu_utilization_ratio",
    }
    assert later["distconsole_host_last_sample_timestamp_seconds", ""] == START + 65
    for host in ("node1", "node2"):
        timeline.apply(scenes.node(host, START + 89))
    stalled = samples(run_page(timeline, START + 90).text())
    assert stalled["distconsole_rank_samples_per_second", "1"] == 0
    assert stalled["distconsole_run_samples_per_second", ""] == 0


def test_a_host_that_tells_nothing_any_more_has_no_load() -> None:
    now = scenes.MINUTE_LATER
    picture = HostGauges(5.0, clock=lambda: now)
    picture.take(scenes.node("node1"))
    picture.take(scenes.node("node2", now - 11))
    families = {
        family.name: family for family in text_string_to_metric_families(picture.page().text())
    }
    (cpu,) = families["distconsole_node_cpu_ratio"].samples
    assert cpu.labels["host"] == "node1"
    assert len(families["distconsole_host_up"].samples) == 2


def test_a_page_has_a_bounded_number_of_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distconsole.formats.gauges.MAX_LABELLED", 10)
    page = GaugePage()
    for number in range(20):
        page.put("distconsole_test", "Help.", float(number), host=f"node{number}")
    (family,) = text_string_to_metric_families(page.text())
    assert [sample.value for sample in family.samples] == [float(n) for n in range(10)]


@pytest.mark.parametrize("value", [HOSTILE, "a\nb", "x" * 10_000, "\ud800", "", 'c:\\x"'])
def test_a_label_is_escaped_and_bounded(value: str) -> None:
    page = GaugePage()
    page.put("distconsole_test", "Help with \\ and\nline.", 1.5, host=value, other="y")
    (family,) = text_string_to_metric_families(page.text())
    (sample,) = family.samples
    assert sample.value == 1.5
    assert sample.labels["other"] == "y"
    assert len(sample.labels.get("host", "")) <= MAX_LABEL_CHARS
    if len(value) < MAX_LABEL_CHARS and "\ud800" not in value:
        assert sample.labels.get("host", "") == value


def test_a_diverged_loss_is_told_as_it_is() -> None:
    page = GaugePage()
    for name, value in (("nan", math.nan), ("up", math.inf), ("down", -math.inf)):
        page.put("distconsole_test", "Help.", value, name=name)
    (family,) = text_string_to_metric_families(page.text())
    values = [sample.value for sample in family.samples]
    assert math.isnan(values[0])
    assert values[1:] == [math.inf, -math.inf]


class Asker:
    """A listening export in a thread, and what asks it."""

    def __init__(self, request: ask.Export) -> None:
        self.control = Control()
        self._told = threading.Event()
        self._words: list[str] = []
        self._thread = threading.Thread(target=self._perform, args=(request,))

    def __enter__(self) -> "Asker":
        self._thread.start()
        assert self._told.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        self.control.leave()
        self._thread.join(20)
        assert not self._thread.is_alive()

    def get(self, path: str = "/metrics", **headers: str) -> tuple[int, str]:
        place = self._words[0].split("/")[2]
        connection = http.client.HTTPConnection(place, timeout=10)
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def _perform(self, request: ask.Export) -> None:
        for event in perform(request, no_session, self.control):
            if isinstance(event, Narration):
                self._words.append(event.text)
                if "has ended" in event.text:
                    self._told.set()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_prometheus_may_ask_on_this_machine(failed: RunStore, address: str) -> None:
    export = ask.Export("last", ExportFormat.PROMETHEUS, listen=(address, 0))
    with Asker(export) as asker:
        code, text = asker.get()
        assert code == 200
        assert samples(text)["distconsole_run_exit_code", ""] == 1
        assert asker.get("/")[0] == 404
        # A page of a browser whose name was made to point here.
        assert asker.get(Host="evil.example:9400")[0] == 403


def test_a_port_that_is_taken_is_an_error(failed: RunStore) -> None:
    with Asker(ask.Export("last", ExportFormat.PROMETHEUS, listen=("127.0.0.1", 0))) as asker:
        port = int(asker._words[0].split("/")[2].rpartition(":")[2])
        with pytest.raises(ConfigError, match="cannot be listened at"):
            done(ask.Export("last", ExportFormat.PROMETHEUS, listen=("127.0.0.1", port)))


def test_what_is_written_aside_follows_no_link(tmp_path: Path) -> None:
    """A folder may be anybody's: a link that waits there leads nowhere."""
    kept = tmp_path / "kept"
    kept.write_text("mine")
    (tmp_path / ".out.csv.part").symlink_to(kept)
    LineFile(tmp_path / "out.csv", CsvLines(make_table(ExportTable.METRICS))).close()
    assert kept.read_text() == "mine"
    assert not (tmp_path / "out.csv").is_symlink()


def test_a_ranks_own_time_is_exported_where_it_is_known_how_long_it_waited() -> None:
    def exported(*, said: bool) -> tuple[list[dict[str, str]], dict[str, float]]:
        timeline, lines = RunTimeline(), CsvLines(make_table(ExportTable.RANKS))
        for event in scenes.training(gpus=False):
            if isinstance(event, Window):
                waited = (1.0 if event.rank == 3 else 9.0, 0.0, 0.0, 0.0, 0.0)
                event = replace(event, step_ms_mean=18.0, waited_ms=waited if said else None)
            timeline.apply(event)  # type: ignore[arg-type]
            list(lines.of(event))  # type: ignore[arg-type]
        rows = csv_rows("\n".join([*lines.beginning(), *lines.ending()]))
        told = samples(run_page(timeline, scenes.MINUTE_LATER).text())
        own = {rank: value for (name, rank), value in told.items() if name.endswith("own_seconds")}
        return rows, own

    rows, own = exported(said=True)
    assert [row["own_ms_run"] for row in rows] == ["10.0"] * 3 + ["18.0"]
    assert own == {"0": 0.01, "1": 0.01, "2": 0.01, "3": 0.018}
    rows, own = exported(said=False)
    assert [row["own_ms_run"] for row in rows] == [""] * 4
    assert own == {}
