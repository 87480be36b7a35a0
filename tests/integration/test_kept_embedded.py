"""Runs on embedded nodes, written down for others while they go on and afterwards."""

import csv
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from distconsole.model.requests import Export, ExportFormat, ReportPage, Run
from distconsole.model.run_events import Window
from distconsole.operations import SessionSource
from suite.browser import browser
from suite.driving import Operator, answered
from suite.lean_torch import LEAN_TORCH

SCRIPT = """\
import os, time
from distconsole_training import report

rank = int(os.environ["RANK"])
for step in range(10_000):
    report(loss=10 - step / 1000 + rank, step=step, samples=4)
    print("step", step, flush=True)
    time.sleep(0.05)
    if os.path.exists("{stop}"):
        break
"""


def wait_for(path: Path, *words: str, seconds: float = 30.0) -> str:
    """Return what a file says once it says all ``words``."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        text = path.read_text() if path.exists() else ""
        if all(word in text for word in words):
            return text
        time.sleep(0.05)
    raise AssertionError(f"{path} does not say {words}")


def test_a_run_is_written_down_while_it_goes_on(
    standing_sessions: SessionSource, tmp_path: Path
) -> None:
    stop, job = tmp_path / "stop", tmp_path / "job.py"
    job.write_text(SCRIPT.format(stop=stop))
    lines, page, tables = (tmp_path / name for name in ("run.jsonl", "run.prom", "tables"))
    with Operator(Run(str(job), nproc="1"), standing_sessions) as run:
        run.see(Window)
        exports = (
            Export("last", output=str(lines), follow=True),
            Export("last", ExportFormat.CSV, str(tables), follow=True),
            Export("last", ExportFormat.PROMETHEUS, str(page), follow=True, interval_seconds=0.2),
        )
        with (
            Operator(exports[0], standing_sessions) as jsonl,
            Operator(exports[1], standing_sessions) as csvs,
            Operator(exports[2], standing_sessions) as prometheus,
        ):
            wait_for(lines, '"event":"window"')
            wait_for(tables / "metrics.csv", ",loss,")
            both = (f'rank="{rank}",state="running"}} 1.0' for rank in range(2))
            text = wait_for(page, "distconsole_rank_metric", *both)
            running = [
                sample.labels["rank"]
                for family in text_string_to_metric_families(text)
                for sample in family.samples
                if sample.name == "distconsole_rank_state" and sample.value
                if sample.labels["state"] == "running"
            ]
            assert running == ["0", "1"]
            stop.touch()
            assert run.end().exit_code == 0
            for each in (jsonl, csvs, prometheus):
                each.finish()
        run.finish()
    assert '"event":"end"' in lines.read_text().splitlines()[-1]
    assert 'state="succeeded"} 1.0' in page.read_text()
    ranks = list(csv.DictReader((tables / "ranks.csv").read_text().splitlines()))
    assert [row["state"] for row in ranks] == ["exited", "exited"]


def test_the_hosts_are_told_of_without_a_run(
    standing_sessions: SessionSource, tmp_path: Path
) -> None:
    page = tmp_path / "hosts.prom"
    answered(Export(None, ExportFormat.PROMETHEUS, str(page)), standing_sessions)
    families = {f.name: f for f in text_string_to_metric_families(page.read_text())}
    up = families["distconsole_host_up"].samples
    assert [(s.labels["host"], s.value) for s in up] == [("node1", 1), ("node2", 1)]
    (first, _) = families["distconsole_node_memory_total_bytes"].samples
    assert first.value > 1e8


FAILS = """
import os, time
from distconsole_training import report

while os.environ["RANK"] == "1":
    report(loss=0.5, samples=4)
    time.sleep(0.02)
    if os.path.exists("{fail}"):
        raise ValueError("no <b>data</b> left")
"""
TRAINS = f"""{LEAN_TORCH}
weight = torch.nn.Parameter(torch.zeros(4))
optimizer = torch.optim.SGD([weight], lr=0.1)
while True:
    loss = ((weight - 1) ** 2).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    report(loss=loss.item(), samples=4)
    time.sleep(0.02)
"""


@pytest.mark.torch_ranks
@pytest.mark.browser
def test_a_run_is_reported_while_it_goes_on_and_when_it_has_failed(
    standing_sessions: SessionSource, tmp_path: Path
) -> None:
    job, path = tmp_path / "job.py", tmp_path / "run.html"
    job.write_text(FAILS.format(fail=tmp_path / "fail") + TRAINS)
    with browser(tmp_path / "profile") as page:
        with Operator(Run(str(job), ("--token", "hunter2"), nproc="1"), standing_sessions) as run:
            run.see(Window, lambda window: window.rank == 0 and window.steps)
            answered(ReportPage("last", str(path)), standing_sessions)
            page.open(path)
            assert page.one(".verdict h2").text == "Without an end so far"
            (tmp_path / "fail").touch()
            assert run.end().exit_code == 1
            run.finish()
        answered(ReportPage("last", str(path)), standing_sessions)
        page.open(path)
        assert page.one(".verdict h2").text == "Failed"
        assert "Rank 1 on node2 failed first" in page.one(".says").text
        assert 'ValueError("no <b>data</b> left")' in page.one(".verdict pre").text
        titles = [each.text for each in page.all(".plot .name")]
        assert titles[0] == "loss"
        assert "Step time" in titles
        page.hover(page.one(".heat .box"))
        assert page.until(lambda: page.one("#tip").text).startswith("rank ")
        assert "hunter2" not in path.read_text()
        assert page.complaints() == []
