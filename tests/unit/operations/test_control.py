"""The handle on an operation."""

import signal
import threading

import pytest

from distconsole.operations import Control, StopReason
from distconsole.operations.control import Wish


def test_wishes_come_in_order_and_the_last_is_known() -> None:
    control = Control()
    assert control.asked is None
    control.stop(StopReason.TERMINATE, 3.0)
    control.kill()
    control.leave()
    control.close()
    given = [control.next() for _ in range(4)]
    assert [each.wish if each else None for each in given] == [
        *(Wish.STOP, Wish.KILL, Wish.LEAVE),
        None,
    ]
    assert (given[0].reason, given[0].grace_seconds) == (StopReason.TERMINATE, 3.0)
    assert control.asked.wish is Wish.LEAVE


def test_a_signal_handler_may_wish_while_somebody_waits() -> None:
    control = Control()
    before = signal.signal(signal.SIGUSR1, lambda *_: control.stop())
    got: list[object] = []
    waiting = threading.Thread(target=lambda: got.append(control.next()))
    waiting.start()
    signal.raise_signal(signal.SIGUSR1)
    waiting.join(5)
    signal.signal(signal.SIGUSR1, before)
    assert len(got) == 1


@pytest.mark.parametrize(
    ("reason", "code"),
    [(StopReason.INTERRUPT, 130), (StopReason.TERMINATE, 143), (StopReason.STOP, 143)],
)
def test_a_reason_has_its_exit_code(reason: StopReason, code: int) -> None:
    assert reason.exit_code == code
