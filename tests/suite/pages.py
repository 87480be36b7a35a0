"""README and docs as values: the commands that they show, their links, their headings."""

import re
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
README = REPOSITORY / "README.md"
CUT = "…"
INTERRUPTED = "^C"

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)", re.MULTILINE)
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Shown:
    """A command of a ``console`` block, and the lines that the page shows below it."""

    section: str
    command: str
    output: tuple[str, ...] = ()


def pages() -> list[Path]:
    """Return README and every page of docs."""
    return [README, *sorted((REPOSITORY / "docs").rglob("*.md"))]


def blocks(text: str, *languages: str) -> list[str]:
    """Return the contents of the fenced blocks of these languages; an empty one has none."""
    return [content for name, content in _FENCED.findall(text) if name in languages]


def shown_commands(text: str) -> list[Shown]:
    """Return the commands of all ``console`` blocks, in the order of the page."""
    found: list[Shown] = []
    for section in re.split(r"^(?=## )", text, flags=re.MULTILINE):
        title = section.partition("\n")[0].removeprefix("## ")
        for block in blocks(section, "console"):
            for command, *output in _split(block):
                found.append(Shown(title, command, tuple(output)))
    return found


def inline_code(text: str) -> list[str]:
    """Return what stands between single backquotes, outside fenced blocks."""
    return _INLINE.findall(_FENCED.sub("", text))


def links(text: str) -> list[str]:
    """Return where a page's links go."""
    return [inline or reference for inline, reference in _LINK.findall(_FENCED.sub("", text))]


def anchors(text: str) -> set[str]:
    """Return the names by which GitHub knows the page's headings."""
    found: set[str] = set()
    for heading in _HEADING.findall(_FENCED.sub("", text)):
        words = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        number = 0
        while (name := f"{words}-{number}" if number else words) in found:
            number += 1
        found.add(name)
    return found


def put_between_marks(page: Path, name: str, text: str) -> None:
    """Write ``text`` between the page's marks of that name; what a person wrote around them stays.

    Raises:
        ValueError: if the page lacks a mark.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    head, found, rest = page.read_text().partition(begin)
    _, ended, tail = rest.partition(end)
    if not (found and ended):
        raise ValueError(f"{page} has no {begin} and {end}")
    page.write_text(f"{head}{begin}\n{text}\n{end}{tail}")


def _split(block: str) -> list[list[str]]:
    commands: list[list[str]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            commands.append([line.removeprefix("$ ")])
        else:
            commands[-1].append(line)
    return commands
