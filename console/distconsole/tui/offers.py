"""How a line at the prompt may go on: the grammar's completions and those of the screen's own verbs."""

from __future__ import annotations

from collections.abc import Iterable

from distconsole.grammar import complete_line
from distconsole.grammar.complete import Completion
from distconsole.monitor.load_fields import LOAD_FIELDS
from distconsole.monitor.rank_fields import RANK_FIELDS
from distconsole.tui.keys import SCREEN_VERBS, SORTS, VIEWS
from distconsole.tui.sitting import Sitting
from distconsole.tui.views.logs import WHATS

FIELDS = tuple(dict.fromkeys((*RANK_FIELDS.names, *LOAD_FIELDS.names)))
"""What conditions may name."""

FEW = 3
"""So many completions are shown with what they mean."""

SHOWN = 24


def completions(line: str, sitting: Sitting, themes: Iterable[str]) -> list[Completion]:
    """Return how ``line`` may go on, verbs of the screen included."""
    words = line.lstrip().split(" ")
    last = words[-1]
    vocabulary = sitting.vocabulary()
    if len(words) == 1:
        own = [
            Completion(verb, verb, meaning)
            for verb, meaning in SCREEN_VERBS.items()
            if verb.startswith(last)
        ]
        return complete_line(line, vocabulary) + own
    choices: tuple[str, ...] | None = {
        "view": (*VIEWS, *(feed.run.run for feed in sitting.feeds if feed.run.run)),
        "sort": tuple(dict.fromkeys((*SORTS, *LOAD_FIELDS.names))),
        "lines": tuple(WHATS),
        "group": ("none", *LOAD_FIELDS.names),
        "unwatch": ("all",),
        **dict.fromkeys(("watch", "filter"), FIELDS),
        "theme": ("dark", "light", *sorted(themes)),
    }.get(words[0])
    if choices is None:
        return complete_line(line, vocabulary)
    start = line[: len(line) - len(last)]
    return [Completion(word, start + word, "") for word in choices if word.startswith(last)]


def offered_text(found: list[Completion]) -> str:
    """Return what the screen says of ``found``."""
    if len(found) <= FEW:
        return "\n".join(f"{each.word}  {each.help}".rstrip() for each in found)
    more = f"  (+{len(found) - SHOWN})" if len(found) > SHOWN else ""
    return "  ".join(completion.word for completion in found[:SHOWN]) + more
