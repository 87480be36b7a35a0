"""Manual pages made of the grammar: ``make man`` writes them to build/man, and the wheel brings them along."""

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import click

from distconsole import __version__
from distconsole.grammar.asking import PROGRAM
from distconsole.grammar.verbs import root

FOLDER = Path(__file__).resolve().parents[2] / "build" / "man"


class ManFormatter(click.HelpFormatter):
    """Writes what ``--help`` shows in the macros of man(7)."""

    def __init__(self) -> None:
        super().__init__(width=10_000)

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        self.write(f".SH SYNOPSIS\n.B {_escape(prog)}\n{_escape(args)}\n.SH DESCRIPTION\n")

    def write_heading(self, heading: str) -> None:
        self.write(f".SH {_escape(heading).upper()}\n")

    def write_paragraph(self) -> None:
        """Leave out the blank lines of a terminal."""

    def write_text(self, text: str) -> None:
        self.write("".join(f".PP\n{_escape(each)}\n" for each in re.split(r"\n\s*\n", text)))

    def write_dl(
        self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        self.write("".join(f".TP\n.B {_escape(name)}\n{_escape(text)}\n" for name, text in rows))

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Write a section; lines that are not roff, as examples are, keep their ends."""
        self.write_heading(name)
        before, self.buffer = self.buffer, []
        yield
        written = "".join(self.buffer)
        if not written.startswith("."):
            lines = "".join(f"{_escape(line.strip())}\n" for line in written.splitlines())
            written = f".nf\n{lines}.fi\n"
        self.buffer = [*before, written]


def man_page(command: click.Command, name: str) -> str:
    """Return the page of ``command`` in roff; ``name`` is how it is typed."""
    formatter = ManFormatter()
    about = str(command.short_help or "check, launch and watch training over SSH").rstrip(".")
    title = name.replace(" ", "-")
    formatter.write(f'.TH "{title.upper()}" 1 "" "{PROGRAM} {__version__}" "User Commands"\n')
    formatter.write(f".SH NAME\n{_escape(title)} \\- {_escape(about)}\n")
    command.format_help(click.Context(command, info_name=name), formatter)
    if command is root:
        pages = ", ".join(f"{PROGRAM}-{verb}(1)" for verb in root.commands)
    else:
        pages = f"{PROGRAM}(1)"
    formatter.write(f'.SH "SEE ALSO"\n{_escape(pages)}\n')
    return formatter.getvalue()


def man_pages() -> Iterator[tuple[str, str]]:
    """Yield each page's file name and text."""
    yield f"{PROGRAM}.1", man_page(root, PROGRAM)
    for verb, command in root.commands.items():
        yield f"{PROGRAM}-{verb}.1", man_page(command, f"{PROGRAM} {verb}")


def _escape(text: str) -> str:
    """Return ``text`` so that roff takes none of it for a request, and hyphens can be copied; see groff_char(7)."""
    safe = " ".join(text.split()).replace("\\", "\\(rs").replace("-", "\\-").replace("'", "\\(aq")
    safe = "".join(each if each.isascii() else f"\\[u{ord(each):04X}]" for each in safe)
    return f"\\&{safe}" if safe.startswith(".") else safe


def main() -> NoReturn:
    """Write every page."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in man_pages():
        (FOLDER / name).write_text(text)
    sys.exit(0)


if __name__ == "__main__":
    main()
