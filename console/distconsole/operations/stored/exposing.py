"""``export --format prometheus``: a run, or the hosts without one, as a page of gauges.

It listens only when asked, only on this machine, and answers nothing but ``GET /metrics``.
"""

from __future__ import annotations

import http.server
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from distconsole.errors import ConfigError
from distconsole.formats.exposition import CONTENT_TYPE, Page
from distconsole.formats.gauges import hosts_page, run_page
from distconsole.formats.outlets import write_whole
from distconsole.model.events import Event, HostStatus, Narration, TextMade
from distconsole.model.findings import Severity
from distconsole.model.requests import Export, Top
from distconsole.model.run_events import GpuKey, GpuSample, LogLine, NodeSample, RunEvent
from distconsole.operations.control import Control
from distconsole.operations.sessions import SessionSource
from distconsole.operations.stored.kept import run_so_far, run_to_its_end
from distconsole.operations.top import top
from distconsole.runs.pace import is_fresh
from distconsole.runs.store.store import RunStore
from distconsole.runs.timeline import RunTimeline

ASKER_SECONDS = 5.0
"""How long one who asks may take over his question."""
MAX_ASKERS = 16
OWN_NAMES = ("127.0.0.1", "localhost", "[::1]")


def expose(
    request: Export, sessions: SessionSource, control: Control, store: RunStore
) -> Iterator[Event]:
    """Yield the page as text, keep a file of it, or answer with it, until left or the run ends.

    Raises:
        ConfigError: if the file cannot be written or the port is taken.
        UnreachableError: if, without a run, no host can be reached.
    """
    events, picture = _asked(request, sessions, control, store)
    shown = Shown(picture)
    with _telling(request, shown) as said:
        yield from _taken(said)
        for event in events:
            if not shown.take(event):
                yield event
            yield from _taken(said)
        if request.listen is not None and control.asked is None:
            yield Narration(text="the run has ended; its last figures stay until Ctrl-C")
            while control.asked is None:
                time.sleep(0.25)
    if request.listen is not None:
        return
    text = shown.text()
    if request.output is None:
        yield TextMade(text=text.removesuffix("\n"))
        return
    path = Path(request.output).expanduser()
    write_whole(path, text.encode())
    values = sum(not line.startswith("#") for line in text.splitlines())
    yield Narration(text=f"{values} values written to {path}")


def _asked(
    request: Export, sessions: SessionSource, control: Control, store: RunStore
) -> tuple[Iterator[Event], RunPicture | HostsPicture]:
    if request.run is None:
        wanted = Top(
            request.where, once=not request.goes_on, interval_seconds=request.interval_seconds
        )
        return top(wanted, sessions, control), HostsPicture(request.interval_seconds)
    if request.goes_on:
        events = run_to_its_end(request.run, request.where, sessions, control, store)
    else:
        events = run_so_far(request.run, request.where, sessions, store)
    return events, RunPicture()


class RunPicture:
    """A run so far."""

    def __init__(self) -> None:
        self._timeline = RunTimeline()

    def take(self, event: Event) -> bool:
        """Fold an event in; return whether it was of the run."""
        if isinstance(event, RunEvent) and not isinstance(event, LogLine):
            self._timeline.apply(event)
        return isinstance(event, RunEvent)

    def page(self) -> Page:
        """Return it as gauges."""
        return run_page(self._timeline, time.time())


class HostsPicture:
    """The newest load of every host that answers.

    Args:
        interval_seconds: How often hosts are asked; after two times in vain what they told is left out.
        clock: UNIX seconds.
    """

    def __init__(self, interval_seconds: float, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._fresh_ms = 1000 * interval_seconds
        self._hosts: dict[str, HostStatus] = {}
        self._nodes: dict[str, NodeSample] = {}
        self._gpus: dict[GpuKey, GpuSample] = {}

    def take(self, event: Event) -> bool:
        """Fold an event in; return whether it was of a host."""
        match event:
            case HostStatus():
                self._hosts[event.host] = event
                if not event.reachable:
                    self._forget(event.host)
            case NodeSample():
                self._nodes[event.host] = event
                self._seen(event.host)
            case GpuSample():
                self._gpus[event.key] = event
                self._seen(event.host)
            case _:
                return False
        return True

    def page(self) -> Page:
        """Return it as gauges."""
        now = self._clock()
        nodes = [each for each in self._nodes.values() if is_fresh(each.t, now, self._fresh_ms)]
        gpus = [each for each in self._gpus.values() if is_fresh(each.t, now, self._fresh_ms)]
        return hosts_page(self._hosts.values(), nodes, gpus)

    def _seen(self, host: str) -> None:
        self._hosts.setdefault(host, HostStatus(host=host, reachable=True))

    def _forget(self, host: str) -> None:
        self._nodes.pop(host, None)
        for key in [key for key in self._gpus if key[0] == host]:
            del self._gpus[key]


class Shown:
    """A picture that one thread folds and others read."""

    def __init__(self, picture: RunPicture | HostsPicture) -> None:
        self._picture = picture
        self._lock = threading.Lock()

    def take(self, event: Event) -> bool:
        """Fold an event in; return whether it belongs to the picture."""
        with self._lock:
            return self._picture.take(event)

    def text(self) -> str:
        """Return the page as it is now."""
        with self._lock:
            return self._picture.page().text()


def _taken(said: SimpleQueue[Narration]) -> Iterator[Narration]:
    while not said.empty():
        yield said.get()


@contextmanager
def _telling(request: Export, shown: Shown) -> Iterator[SimpleQueue[Narration]]:
    """Answer, or write the file anew, while the body runs; give what is to be said of that, where first."""
    said: SimpleQueue[Narration] = SimpleQueue()
    if request.listen is not None:
        with _listening(request.listen, shown.text) as url:
            said.put(Narration(text=f"answering at {url} on this machine; Ctrl-C ends it"))
            yield said
    elif request.output is not None and request.follow:
        every = f"every {request.interval_seconds:g} s"
        said.put(Narration(text=f"writing {request.output} {every}"))
        with _rewriting(request, shown, said):
            yield said
    else:
        yield said


@contextmanager
def _rewriting(request: Export, shown: Shown, said: SimpleQueue[Narration]) -> Iterator[None]:
    assert request.output is not None
    path = Path(request.output).expanduser()
    write_whole(path, shown.text().encode())
    over = threading.Event()

    def rewrite() -> None:
        refused = False
        while not over.wait(request.interval_seconds):
            try:
                write_whole(path, shown.text().encode())
            except ConfigError as error:
                if not refused:
                    words = f"{error.message}; it is tried again"
                    said.put(Narration(text=words, severity=Severity.WARN))
                refused = True
                continue
            if refused:
                said.put(Narration(text=f"{path} is written again"))
            refused = False

    thread = threading.Thread(target=rewrite, name="prometheus-file", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def _listening(place: tuple[str, int], text: Callable[[], str]) -> Iterator[str]:
    try:
        server = _Server(place, text)
    except OSError as error:
        raise ConfigError(
            f"{place[0]}:{place[1]} cannot be listened at: {error.strerror}", "name another port"
        ) from None
    thread = threading.Thread(
        target=partial(server.serve_forever, poll_interval=0.1), name="prometheus", daemon=True
    )
    thread.start()
    try:
        yield server.url
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = True

    def __init__(self, place: tuple[str, int], text: Callable[[], str]) -> None:
        if ":" in place[0]:
            self.address_family = socket.AF_INET6
        self.text = text
        self._slots = threading.BoundedSemaphore(MAX_ASKERS)
        super().__init__(place, _Asker)

    @property
    def url(self) -> str:
        """Where it answers."""
        address, port = self.server_address[:2]
        shown = f"[{address!s}]" if ":" in str(address) else str(address)
        return f"http://{shown}:{port}/metrics"

    def process_request_thread(self, request: object, client_address: object) -> None:
        """Answer one, or close at once where too many ask."""
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)  # type: ignore[arg-type]
            return
        try:
            super().process_request_thread(request, client_address)  # type: ignore[arg-type]
        finally:
            self._slots.release()

    def handle_error(self, _request: object, _client_address: object) -> None:
        """Nothing: one who hangs up is no news."""


class _Asker(http.server.BaseHTTPRequestHandler):
    server: _Server
    timeout = ASKER_SECONDS
    server_version = "distconsole"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer with the page. A name other than this machine's own is a page of a browser asking."""
        name = self.headers.get("Host", "localhost").rpartition(":")[0] or self.headers.get("Host")
        if name not in OWN_NAMES and self.headers.get("Host") not in OWN_NAMES:
            self._answer(403, b"only this machine's own names are answered to\n", "text/plain")
        elif self.path.partition("?")[0] != "/metrics":
            self._answer(404, b"the figures are at /metrics\n", "text/plain")
        else:
            self._answer(200, self.server.text().encode(), CONTENT_TYPE)

    def _answer(self, code: int, body: bytes, kind: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing: stderr is the operator's."""
