"""One look, in a thread, at what a line would launch; the screen reads what it has found so far."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator

from distconsole.errors import ConsoleError, UsageError
from distconsole.model import requests as ask
from distconsole.model.events import Event, LaunchersJudged, Narration, ScriptSought
from distconsole.model.findings import Severity
from distconsole.model.run_events import PlanMade
from distconsole.operations import Control

Foreseen = Callable[[ask.Foresee, Control], Iterator[Event]]
"""Does the request for one look."""


class PlanPreview:
    """What is known of one line; fields are written by its thread and only ever get more.

    Args:
        began: Monotonic seconds.

    Attributes:
        request: What the line asks for, once it is understood.
        refused: By launcher why it would not do; None while that is not known.
    """

    request: ask.Run | None = None
    plan: PlanMade | None = None
    notes: tuple[tuple[str, bool], ...] = ()
    refused: dict[str, str] | None = None
    sought: ScriptSought | None = None
    error: ConsoleError | None = None
    done = False

    def __init__(
        self,
        line: str,
        parse: Callable[[str], ask.Request],
        foresee: Foreseen,
        *,
        launchers: bool = False,
        began: float = 0.0,
    ) -> None:
        self.line = line
        self.began = began
        self._parse = parse
        self._foresee = foresee
        self._launchers = launchers
        self._control = Control()
        self._thread = threading.Thread(target=self._work, name="plan preview", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def fail(self, error: ConsoleError) -> None:
        """Know without looking that it cannot be."""
        self.error = error
        self.done = True

    def leave(self) -> None:
        """Look no further; nobody wants to know."""
        self._control.leave()

    @property
    def goes_on(self) -> bool:
        """Whether its thread still waits for something."""
        return self._thread.is_alive()

    def join(self, timeout_seconds: float) -> None:
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)

    def _work(self) -> None:
        try:
            self._look()
        except ConsoleError as error:
            self.error = error
        except Exception as error:  # noqa: BLE001 - a fault of the planner must not tear down the screen
            self.error = ConsoleError(f"planning broke: {type(error).__name__}: {error}")
        finally:
            self.done = True

    def _look(self) -> None:
        request = self._parse(self.line)
        if not isinstance(request, ask.Run):
            raise UsageError("this launches nothing", "run SCRIPT")
        self.request = request
        events = self._foresee(ask.Foresee(request, self._launchers), self._control)
        for event in events:
            if self._control.asked is not None:
                if isinstance(events, Generator):
                    events.close()
                return
            self._take(event)

    def _take(self, event: Event) -> None:
        match event:
            case PlanMade():
                self.plan = event
            case Narration():
                self.notes += ((event.text, event.severity is not Severity.INFO),)
            case ScriptSought():
                self.sought = event
            case LaunchersJudged():
                self.refused = event.refused
            case _:
                pass
