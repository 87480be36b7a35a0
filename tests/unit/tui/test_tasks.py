"""What a task that follows a run says of it in the transcript."""

from collections.abc import Iterator

import msgspec
import pytest

from distconsole.model import requests as ask
from distconsole.model.events import Event
from distconsole.model.run_events import LinkChanged, RunEvents, RunFinding, RunRestarted
from distconsole.operations import Control, SessionSource
from distconsole.tui.tasks import RequestTask
from distconsole.tui.transcript import Transcript
from fakes import scenes

FOUND = "warn: rank 3 on node2 is slow in the data part of its steps"
SLOW = list(scenes.straggling())[-1]
assert isinstance(SLOW, RunFinding)
SLOWER = msgspec.structs.replace(SLOW, summary=f"{SLOW.summary}, now twice as much")


FIRST, SECOND = (
    RunRestarted(t=scenes.MINUTE_LATER, run=scenes.RUN, restart=restart, of=3)
    for restart in (1, 2)
)


def lost(*, connected: bool) -> LinkChanged:
    return LinkChanged(
        t=scenes.MINUTE_LATER, run=scenes.RUN, host="node2", connected=connected, reason="no route"
    )


@pytest.mark.parametrize(
    ("before", "again", "after", "noted"),
    [
        ((), (SLOW,), (), [FOUND]),
        ((SLOW,), (SLOWER,), (), [FOUND]),
        ((SLOW,), (), (SLOWER,), [FOUND]),
        ((SLOW,), (SLOW,), (SLOWER,), [FOUND, f"{FOUND}, now twice as much"]),
        ((SECOND,), (FIRST, SECOND), (), ["restart 2 of 3", "restart 1 of 3"]),
    ],
    ids=["by the second fold", "by both", "after it", "slow once more", "an earlier restart"],
)
def test_what_a_late_host_s_journal_changes_is_said_once(
    before: tuple[RunEvents, ...],
    again: tuple[RunEvents, ...],
    after: tuple[RunEvents, ...],
    noted: list[str],
) -> None:
    start = list(scenes.training(4))

    def perform(_r: ask.Request, _s: SessionSource, control: Control) -> Iterator[Event]:
        yield from (*start, *before, lost(connected=False))
        assert control.retell is not None
        told: tuple[RunEvents, ...] = (*start, *again)
        control.retell(iter(told))
        yield from (*after, lost(connected=False))

    transcript = Transcript()
    task = RequestTask(ask.Attach(run=scenes.RUN), "attach", None, transcript, perform=perform)  # type: ignore[arg-type]
    task.start()
    assert task.join(30)
    lines = transcript.text().splitlines()
    assert [line for line in lines if "slow" in line or "restart" in line] == noted
    assert sum("4 ranks on 2 hosts" in line for line in lines) == 1
    assert sum("connection lost" in line for line in lines) == 2
