"""``export --format prometheus``: a run, or the hosts without one, as a page of gauges.

It listens only when asked, only on this machine, and answers only ``GET /metrics``.
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

from distconsole.config.paths import expand_home
from distconsole.errors import ConfigError
from distconsole.formats.gauges import CONTENT_TYPE, GaugePage, hosts_page, run_page
from distconsole.formats.outlets import write_whole
from distconsole.model.events import Event, HostStatus, Narration, TextMade, warn
from distconsole.model.names import count_text
from distconsole.model.requests import Export, Top
from distconsole.model.run_events import GpuKey, GpuSample, LogLine, NodeSample, RunEvent
from distconsole.operations.attach import follow_run
from distconsole.operations.control import Control
from distconsole.operations.sessions import SessionSource, drain
from distconsole.operations.top import top
from distconsole.runs.pace import is_fresh
from distconsole.runs.store.store import RunStore
from distconsole.runs.timeline import RunTimeline

ASKER_SECONDS = 5.0
"""How long one who asks may take over his question."""
MAX_ASKERS = 16
OWN_NAMES = ("127.0.0.1", "localhost", "[::1]")
TICK_SECONDS = 0.25


def expose(
    request: Export, sessions: SessionSource, control: Control, store: RunStore
) -> Iterator[Event]:
    """Yield the page as text, keep a file of it, or answer with it, until left or the run ends.

    Raises ConfigError if the file cannot be written or the port is taken; UnreachableError if,
    without a run, no host can be reached.
    """
    gauges: RunGauges | HostGauges
    if request.run is None:
        every = request.interval_seconds
        hosts = Top(where=request.where, once=not request.goes_on, interval_seconds=every)
        events, gauges = top(hosts, sessions, control), HostGauges(every)
    else:
        follow = control if request.goes_on else None
        events = follow_run(request.run, request.where, sessions, store, follow)
        gauges = RunGauges()
    lock = threading.Lock()

    def text() -> str:
        with lock:
            return gauges.page().text()

    with _publish(request, text) as said:
        yield from drain(said)
        for event in events:
            with lock:
                taken = gauges.take(event)
            if not taken:
                yield event
            yield from drain(said)
        if request.listen is not None and control.asked is None:
            yield Narration(text="the run has ended; its last figures stay until Ctrl-C")
            while control.asked is None:
                time.sleep(TICK_SECONDS)
    if request.listen is None:
        yield _write(request, text())


def _write(request: Export, text: str) -> Event:
    if request.output is None:
        return TextMade(text=text.removesuffix("\n"))
    path = expand_home(request.output)
    write_whole(path, text.encode())
    values = sum(not line.startswith("#") for line in text.splitlines())
    return Narration(text=f"{count_text(values, 'value')} written to {path}")


class RunGauges:
    def __init__(self) -> None:
        self._timeline = RunTimeline()

    def take(self, event: Event) -> bool:
        if isinstance(event, RunEvent) and not isinstance(event, LogLine):
            self._timeline.apply(event)
        return isinstance(event, RunEvent)

    def page(self) -> GaugePage:
        return run_page(self._timeline, time.time())


class HostGauges:
    """The newest load of every host that answers.

    Args:
        interval_seconds: How often hosts are asked; samples that are not fresh (``is_fresh``) are left out.
        clock: UNIX seconds.
    """

    def __init__(self, interval_seconds: float, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._fresh_ms = 1000 * interval_seconds
        self._hosts: dict[str, HostStatus] = {}
        self._samples: dict[str | GpuKey, NodeSample | GpuSample] = {}

    def take(self, event: Event) -> bool:
        match event:
            case HostStatus():
                self._hosts[event.host] = event
                if not event.reachable:
                    kept = self._samples.items()
                    self._samples = {key: each for key, each in kept if each.host != event.host}
                return True
            case NodeSample() | GpuSample():
                key = event.key if isinstance(event, GpuSample) else event.host
                self._samples[key] = event
                self._hosts.setdefault(event.host, HostStatus(host=event.host, reachable=True))
                return True
            case _:
                return False

    def page(self) -> GaugePage:
        now = self._clock()
        fresh = [each for each in self._samples.values() if is_fresh(each.t, now, self._fresh_ms)]
        nodes = [each for each in fresh if isinstance(each, NodeSample)]
        gpus = [each for each in fresh if isinstance(each, GpuSample)]
        return hosts_page(self._hosts.values(), nodes, gpus)


@contextmanager
def _publish(request: Export, text: Callable[[], str]) -> Iterator[SimpleQueue[Narration]]:
    """Answer, or rewrite the file, while the body runs; yield its notes."""
    said: SimpleQueue[Narration] = SimpleQueue()
    server = None if request.listen is None else _listen(request.listen, text)
    if server is not None:
        said.put(Narration(text=f"answering at {server.url} on this machine; Ctrl-C ends it"))
        work, end = partial(server.serve_forever, poll_interval=0.1), server.shutdown
    elif request.output is not None and request.follow:
        path, over = expand_home(request.output), threading.Event()
        every = request.interval_seconds
        write_whole(path, text().encode())
        said.put(Narration(text=f"writing {request.output} every {every:g} s"))
        work, end = partial(_rewrite, path, text, said, partial(over.wait, every)), over.set
    else:
        yield said
        return
    thread = threading.Thread(target=work, name="prometheus", daemon=True)
    thread.start()
    try:
        yield said
    finally:
        end()
        thread.join()
        if server is not None:
            server.server_close()


def _rewrite(
    path: Path, text: Callable[[], str], said: SimpleQueue[Narration], over: Callable[[], bool]
) -> None:
    refused = False
    while not over():
        try:
            write_whole(path, text().encode())
        except ConfigError as error:
            if not refused:
                said.put(warn(f"{error.message}; it is tried again"))
            refused = True
            continue
        if refused:
            said.put(Narration(text=f"{path} is written again"))
        refused = False


def _listen(place: tuple[str, int], text: Callable[[], str]) -> _Server:
    try:
        return _Server(place, text)
    except OSError as error:
        raise ConfigError(
            f"{place[0]}:{place[1]} cannot be listened at: {error.strerror}", "name another port"
        ) from None


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
        host = self.headers.get("Host", "localhost")
        if host not in OWN_NAMES and host.rpartition(":")[0] not in OWN_NAMES:
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
