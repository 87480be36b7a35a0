"""What the demo refuses, and what it says of itself."""

import sys

import pytest

from distconsole.errors import UnavailableError
from distconsole.model.events import DemoEnded, DemoStep
from distconsole.model.requests import Demo
from distconsole.operations import Control, demo, perform
from distconsole.text.show import demo_lines
from fakes.sessions import no_session


def test_only_the_demo_that_trains_with_torch_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UnavailableError, match="needs torch, not installed") as raised:
        next(perform(Demo(torch=True), no_session))
    assert "distconsole[training]" in raised.value.hint
    events = perform(Demo(), no_session)
    assert isinstance(next(events), DemoStep)
    events.close()


def test_a_demo_that_is_stopped_in_its_check_starts_no_run_and_claims_none() -> None:
    control = Control()
    control.stop()
    events = list(perform(Demo(), no_session, control))
    assert [event.title for event in events if isinstance(event, DemoStep)] == ["check"]
    (end,) = [event for event in events if isinstance(event, DemoEnded)]
    assert (end.run, end.exit_code) == ("", 130)
    assert any("the whole demo" in line for line in demo_lines(end))


@pytest.mark.parametrize(
    "title", [demo.CHECK, demo.TRAINING, demo.SLOW, demo.FAILURE, demo.DIGITS], ids=lambda t: t[0]
)
def test_what_to_look_at_fits_into_a_small_terminal(title: tuple[str, str]) -> None:
    (line,) = demo_lines(DemoStep(number=1, of=4, title=title[0], look=title[1]))
    assert len(line) <= 78
