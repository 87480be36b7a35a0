import json
from pathlib import Path

import pytest

from suite.house import main, measure

AGENT = "agents/distconsole_agent/reading.py"
CONSOLE = "console/distconsole/reading.py"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in {
        AGENT: "from typing import Any\n\nclass Place:\n    kept: dict[str, Any]\n",
        "training/distconsole_training/rings.py": "import distconsole_agent.reading\n",
        CONSOLE: "class Place:\n    pass\n\ndef _one():\n    return 1\n\nONE = _one()\n",
        "README.md": "Four words are here.",
        "docs/architecture.md": "Two words.",
        "tests/test_it.py": "\n\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_each_measure_counts_what_it_is_named_for(checkout: Path) -> None:
    assert measure(checkout) == {
        "source lines": 12,
        "functions per 1,000 lines": 83,
        "short private functions called once": 1,
        "modules with one importer": 1,
        "class names that mean two things": 1,
        "dict[str, Any] in the agent": 1,
        "words of README and docs": 6,
        "lines of tests": 2,
    }


def test_a_measure_that_rises_fails_and_is_recorded_only_where_asked(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = checkout / "house.json"
    assert main(["--lower"], checkout, record) == 0
    with (checkout / CONSOLE).open("a") as module:
        module.write("TWO = 2\n")
    (checkout / "tests/test_it.py").write_text("")

    assert main(["--lower"], checkout, record) == 1
    assert capsys.readouterr().out == "source lines: 13, and house.json records 12\n"
    recorded = json.loads(record.read_text())
    assert (recorded["source lines"], recorded["lines of tests"]) == (12, 0)
    assert main(["--accept"], checkout, record) == 0
    assert main([], checkout, record) == 0
