"""The launch in the form: one draft, its line, and a preview of its plan."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace

from distconsole.config.hostfile import NamedHost, host_text
from distconsole.config.hosts import hosts_in
from distconsole.config.shortcuts import MAX_LINE_CHARS
from distconsole.config.spelling import nearest
from distconsole.errors import ConsoleError, NodeError, UnreachableError, UsageError
from distconsole.grammar.drafts import SCRIPT, Draft, fields_by_name, read_draft
from distconsole.model import requests as ask
from distconsole.model.cluster import Host
from distconsole.model.events import Event, LaunchersJudged, Narration, ScriptSought
from distconsole.model.findings import Severity
from distconsole.model.run_events import PlanMade
from distconsole.operations import Control
from distconsole.tui.terminal.sanitize import one_line

QUIET_BEATS = 3
"""Ticks of the screen without typing before a plan is made."""

MOST_LOOKS = 4
"""Previews that may hang on silent hosts; the next begins when one of them has ended."""

FLAG = re.compile(r"--[a-z][a-z-]+")
CLICKS_OWN = re.compile(r"^Invalid value for '[^']*': ")
"""The part of Click's message that the field shows anyway."""

WHO = ("hosts", "hostfile", "cluster", "ssh_config", "transport", "python", "setup", "container")

Foreseen = Callable[[ask.Foresee, Control], Iterator[Event]]
"""Performs the request of one preview."""


class PlanPreview:
    """The plan of one line as far as known; only its thread writes the fields, and never clears one.

    Args:
        began: Monotonic seconds.

    Attributes:
        request: The parsed line, once it is valid.
        refused: Reasons against each launcher; None while unknown.
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
        """Set an error without a look at the hosts."""
        self.error = error
        self.done = True

    def leave(self) -> None:
        """Stop planning: the result is no longer used."""
        self._control.leave()

    @property
    def goes_on(self) -> bool:
        """True while its thread waits for a result."""
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


@dataclass(frozen=True, slots=True)
class Trouble:
    """An error of the launch: its field (or empty), and one line."""

    field: str
    words: str

    @property
    def short(self) -> str:
        """The suggested spelling if there is one, else the whole line; for the room below a field."""
        _, meant, name = self.words.rpartition("did you mean ")
        return f"{meant}{name}" if meant else self.words


class LaunchFormModel:
    """Fills in a launch and plans it as it changes.

    Args:
        look: Begins a preview of a line: its text, and True if launchers are to be judged.
        lost: The error of a host's lost connection; None with one, or before the first.
    """

    broken: ConsoleError | None = None
    latest: PlanPreview | None = None
    shown: PlanPreview | None = None
    wanted = False
    _judged_for: tuple[str, ...] | None = None
    _ticks_to_go = 0
    _planned: tuple[str, tuple[str, ...], tuple[str, ...]] | None = None

    def __init__(
        self,
        look: Callable[[str, bool], PlanPreview],
        hosts: Callable[[], Sequence[Host]],
        lost: Callable[[str], str | None],
    ) -> None:
        self._look = look
        self._hosts = hosts
        self._lost = lost
        self.draft = Draft()
        self.line = self.draft.line()
        self.refused: dict[str, str] = {}
        self._looks: list[PlanPreview] = []

    @property
    def blank(self) -> bool:
        return not self.draft.given and not self.draft.unfinished and self.broken is None

    def edit(self, name: str, text: str) -> None:
        self.fill(self.draft.holding(name, text))

    def fill(self, draft: Draft) -> None:
        self.draft = draft
        self._say(draft.line(), None)

    def take(self, line: str) -> bool:
        """Take ``line`` if it is a launch; return False if not."""
        if line == self.line:
            return True
        try:
            draft = read_draft(line)
        except ConsoleError as error:
            if line.split()[:1] != ["run"]:
                return False
            self._say(line, error)
            return True
        if draft is None:
            return False
        self.draft = draft
        self._say(line, None)
        return True

    def choose_hosts(self, names: Sequence[str]) -> None:
        """Launch on these of the known hosts; slots in the line stay."""
        known = {str(host.name): host for host in self._hosts()}
        said = {host.name: host for host in hosts_in(self.draft.text("hosts"))}
        as_known = all(
            name in known and each.slots in (None, known[name].slots)
            for name, each in said.items()
        )
        draft = self.draft
        for name in ask.NAMES_OF_HOSTS:
            draft = draft.giving(name, ())
        if set(names) != set(known) or not as_known or not names:
            text = ",".join(_host_words(name, said.get(name), known.get(name)) for name in names)
            draft = draft.giving("hosts", (text,))
        self.fill(draft)

    @property
    def chosen_hosts(self) -> list[str] | None:
        """The named hosts; None if only the plan knows them."""
        if "hosts" in self.draft.given:
            return [host.name for host in hosts_in(self.draft.text("hosts"))] or None
        if any(name in self.draft.given for name in ask.NAMES_OF_HOSTS):
            plan = self.latest.plan if self.latest is not None else None
            return None if plan is None else [host.host for host in plan.hosts]
        return [host.name for host in self._hosts()]

    def tick(self) -> bool:
        """Begin to plan if the line has rested; return True if a requested start can be decided."""
        self._ticks_to_go = max(0, self._ticks_to_go - 1)
        self._looks = [look for look in self._looks if look.goes_on]
        self._learn()
        key = (self.line, self._away(), tuple(host.name for host in self._hosts()))
        rested = self._may_plan and not self._ticks_to_go
        if self._planned != key and rested and len(self._looks) < MOST_LOOKS:
            self._planned = key
            self._plan(key[1])
        return self.wanted and self.settled

    @property
    def _may_plan(self) -> bool:
        told = self.broken is None and not self.draft.unfinished and holds(self.line)
        return SCRIPT in self.draft.given and told

    @property
    def settled(self) -> bool:
        if not self._may_plan:
            return True
        latest = self.latest
        return latest is not None and latest.line == self.line and latest.done

    @property
    def trouble(self) -> Trouble | None:
        if self.broken is not None:
            return Trouble(self.broken.option, _one_line(self.broken))
        if not holds(self.line):
            odd = (name for name in self.draft.given if not holds(self.draft.text(name)))
            words = "no line holds all of this; rerun launches a run of before as it was"
            return Trouble(next(odd, ""), words)
        for name in self.draft.unfinished:
            return Trouble(name, "a quote is open: close it")
        if SCRIPT not in self.draft.given:
            return Trouble(SCRIPT, "which script is to run?")
        latest = self.latest
        if latest is None or latest.line != self.line:
            return None
        if latest.error is not None:
            return self._meant(latest.error)
        sought = latest.sought
        if sought is not None and sought.missing:
            hint = f"did you mean {sought.near}?" if sought.near else "sync brings it there"
            if sought.script.startswith(f"{sought.near} "):
                hint += " Its arguments have a field of their own"
            where = ", ".join(sought.missing[:4]) + (" …" if sought.missing[4:] else "")
            return Trouble(SCRIPT, f"{sought.script} does not exist on {where}: {hint}")
        return None

    def want_start(self) -> None:
        """Start once the plan is ready; a failed plan is made again."""
        self.wanted = True
        self._ticks_to_go = 0
        if self.settled and self.trouble is not None:
            self._planned = None

    def _say(self, line: str, broken: ConsoleError | None) -> None:
        self.line, self.broken = line, broken
        self.wanted = False
        self._ticks_to_go = QUIET_BEATS
        if self.latest is not None and self.latest.line != line:
            self.latest.leave()

    def _plan(self, away: tuple[str, ...]) -> None:
        whose = tuple(self.draft.text(name) for name in WHO)
        if self.latest is not None:
            self.latest.leave()
        look = self._look(self.line, whose != self._judged_for)
        self.latest = look
        if away and ":" not in self.draft.text("nnodes"):
            said = [f"{name}: {self._lost(name)}" for name in away]
            look.fail(UnreachableError(f"not reached: {'; '.join(said)}", "Space leaves it out"))
        else:
            self._looks.append(look)
            look.start()

    def _learn(self) -> None:
        latest = self.latest
        if latest is None:
            return
        if latest.plan is not None:
            self.shown = latest
        if latest.refused is not None and latest.line == self.line:
            self.refused = latest.refused
            self._judged_for = tuple(self.draft.text(name) for name in WHO)

    def _away(self) -> tuple[str, ...]:
        given = self.draft.given
        if "hosts" not in given and any(name in given for name in ask.NAMES_OF_HOSTS):
            return ()
        return tuple(name for name in self.chosen_hosts or () if self._lost(name) is not None)

    def _meant(self, error: ConsoleError) -> Trouble:
        field = field_of(error)
        words = _one_line(error)
        if field == "hosts" and "did you mean" not in words:
            known = [host.name for host in self._hosts()]
            strange = [name for name in self.chosen_hosts or () if name not in known]
            near = nearest(strange[0], known) if strange else None
            words = f"{error.message}: did you mean {near}?" if near else words
        return Trouble(field, words)


def holds(line: str) -> bool:
    return len(line) <= MAX_LINE_CHARS and one_line(line) == line


def field_of(error: ConsoleError) -> str:
    """Return the field that ``error`` is about; empty if it is about none."""
    known = fields_by_name()
    if error.option in known:
        return error.option
    by_flag = {each.flag: name for name, each in known.items() if each.flag}
    for flag in FLAG.findall(error.message):
        if flag in by_flag:
            return by_flag[flag]
    if isinstance(error, UnreachableError | NodeError) or " hosts " in error.message:
        return "hosts"
    return SCRIPT if "the script" in error.message else ""


def _one_line(error: ConsoleError) -> str:
    hint = error.hint.partition("\n")[0]
    words = CLICKS_OWN.sub("", " ".join(error.message.split())).removesuffix(".")
    return f"{words}: {hint}" if hint and not hint.startswith("see '") else words


def _host_words(name: str, said: NamedHost | None, known: Host | None) -> str:
    """Return a host as ``--hosts`` takes it, completed from the line and the console's own list."""
    said = said or NamedHost(name)
    if known is not None:
        said = replace(
            said,
            user=said.user or known.user,
            slots=said.slots or known.slots,
            port=said.port or known.port,
        )
    return host_text(said)
