"""Journals of a node, for tests that write and read them."""

import json
from pathlib import Path
from typing import Any

from distconsole_agent.journal.journal import Journal
from distconsole_agent.journal.reader import Reader


def note(text: str) -> dict[str, Any]:
    return {"t": 1.0, "kind": "note", "summary": text}


def opened(folder: Path) -> Journal:
    """Return a journal that this process writes."""
    journal = Journal(str(folder))
    assert journal.open_writer()
    return journal


def read_after(journal: Journal, after: int = 0) -> list[dict[str, Any]]:
    reader = Reader(journal.folder, after)
    try:
        return [json.loads(line) for line in reader.read_all()]
    finally:
        reader.close()
