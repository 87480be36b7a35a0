"""``run --emit``: the file written, or printed. Its text is made elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from distconsole.errors import UsageError
from distconsole.launch.emit import ToEmit, emit
from distconsole.model.events import Event, Narration, TextMade


def write_emitted(what: ToEmit) -> Iterator[Event]:
    """Yield the text of ``--emit``, or write it where ``--output`` says.

    Raises:
        ConsoleError: if there is no such file for this script, or it cannot be written.
    """
    request = what.request
    assert request.emit is not None
    text = emit(request.emit, what)
    if request.output is None:
        yield TextMade(text=text)
        return
    path = Path(request.output).expanduser()
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--output {path} cannot be written: {error.strerror}") from None
    yield Narration(text=f"wrote {path}")
