"""The full-screen front end on Textual. It does nothing to a host: it asks ``operations``."""

from distconsole.model.requests import Request


def open_screen(request: Request) -> int:
    """Open the screen on ``request`` and return the program's exit code.

    Raises:
        ConsoleError: if the hosts given cannot be read.
    """
    from distconsole.tui.app import ConsoleApp  # noqa: PLC0415 - Textual takes a third of a second

    return ConsoleApp.open(request)
