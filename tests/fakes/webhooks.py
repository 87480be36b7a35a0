"""A real receiver of webhooks on loopback."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

SECRET = "T00000/B00000/XXXXXXXX"


class Webhook(HTTPServer):
    """Answers with ``codes`` in turn, the last one for ever."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.codes = [200]
        self.bodies: list[dict[str, Any]] = []
        self.came = threading.Semaphore(0)
        """Once for each body."""
        self.address = f"http://127.0.0.1:{self.server_port}/{SECRET}"


class _Answer(BaseHTTPRequestHandler):
    server: Webhook

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.bodies.append(json.loads(body))
        codes = self.server.codes
        self.send_response(codes.pop(0) if len(codes) > 1 else codes[0])
        self.send_header("Location", "http://127.0.0.1:1/elsewhere")
        self.end_headers()
        self.server.came.release()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[Webhook]:
    with Webhook() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()
