"""What a shell prints for a request."""

import io

from distconsole.cli.streams import Streams
from distconsole.model.events import Event
from distconsole.model.requests import Request
from distconsole.text.show import show_for


def print_events(request: Request, *events: Event) -> tuple[str, str]:
    """Return what a request's events print to stdout and to stderr, neither of which is a terminal."""
    out, err = io.StringIO(), io.StringIO()
    show = show_for(request, Streams(out, err))
    for event in events:
        show.event(event)
    show.finish()
    return out.getvalue(), err.getvalue()
