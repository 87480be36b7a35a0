"""A run on a disk that somebody else fills: its ranks go on, and its end is told while the disk is full."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fakes.agents import AgentNode, launch, spec_of
from fakes.disks import fill, small_disk

MOST_WAITED = 120.0

WAITS = """
import os, time
print("before", flush=True)
while not os.path.exists({full!r}):
    time.sleep(0.01)
for n in range(3000):
    print(n, "and some words to fill the line" * 10, flush=True)
{then}
"""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[AgentNode]:
    """A node whose folder is on a disk of 24 MB of its own."""
    with (
        small_disk(tmp_path / "disk", "size=24m,mode=700") as disk,
        closing(AgentNode(disk / "node")) as node,
    ):
        yield node


@pytest.mark.timeout(MOST_WAITED)
@pytest.mark.parametrize(
    ("then", "state", "exit_code"),
    [("", "succeeded", 0), ("raise ValueError('broken')", "failed", 1)],
)
def test_the_end_of_a_run_is_told_while_the_disk_is_full(
    small: AgentNode, tmp_path: Path, then: str, state: str, exit_code: int
) -> None:
    bridge = small.bridge()
    full = tmp_path / "full"
    launch(bridge, spec_of("full", [WAITS.format(full=str(full), then=then)]))
    entries: list[dict[str, Any]] = []
    for entry in bridge.follow("full"):
        entries.append(entry)
        if entry["kind"] == "log" and not full.exists():
            fill(tmp_path / "disk" / "foreign")
            full.touch()
    assert (entries[-1]["kind"], entries[-1]["state"]) == ("end", state)
    assert entries[-1]["exit_code"] == exit_code
    kinds = [entry["kind"] for entry in entries]
    assert "verdict" in kinds
    assert [e["state"] for e in entries if e["kind"] == "state"][-1] == (
        "exited" if exit_code == 0 else "failed"
    )
    assert "run.output_dropped" in [e["check"] for e in entries if e["kind"] == "note"]
