"""Measures of the repository that may only fall. `.ci/house.json` records them, and `make check` compares.

python -m suite.house             fails where a measure is above its recorded value
python -m suite.house --lower     records the values that have fallen, and fails as above
python -m suite.house --accept    records all values, those that have risen too
"""

import argparse
import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from suite.pages import REPOSITORY

RECORD = REPOSITORY / ".ci" / "house.json"
ROOTS = ("console/distconsole", "agents/distconsole_agent", "training/distconsole_training")
SHORT = 6  # lines of a function that is hardly worth a name if one place calls it

Measures = Mapping[str, int]
Function = ast.FunctionDef | ast.AsyncFunctionDef


def measure(repository: Path) -> Measures:
    """All measures of a checkout."""
    texts = {
        _module(path, (repository / root).parent): path.read_text(encoding="utf-8")
        for root in ROOTS
        for path in sorted((repository / root).rglob("*.py"))
    }
    trees = {module: ast.parse(text) for module, text in texts.items()}
    lines = _lines(texts.values())
    functions = sum(
        isinstance(node, Function) for tree in trees.values() for node in ast.walk(tree)
    )
    classes = Counter(
        node.name
        for tree in trees.values()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    agent = (text for module, text in texts.items() if module.startswith("distconsole_agent"))
    pages = [repository / "README.md", *(repository / "docs").rglob("*.md")]
    tests = (repository / "tests").rglob("*.py")
    return {
        "source lines": lines,
        "functions per 1,000 lines": functions * 1000 // max(lines, 1),
        "short private functions called once": sum(map(_called_once, trees.values())),
        "modules with one importer": _with_one_importer(trees),
        "class names that mean two things": sum(times > 1 for times in classes.values()),
        "dict[str, Any] in the agent": sum(text.count("dict[str, Any]") for text in agent),
        "words of README and docs": sum(len(page.read_text("utf-8").split()) for page in pages),
        "lines of tests": _lines(path.read_text("utf-8", errors="replace") for path in tests),
    }


def _module(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts)


def _lines(texts: Iterable[str]) -> int:
    return sum(text.count("\n") for text in texts)


def _called_once(tree: ast.Module) -> int:
    """How many private functions of a module are short and named in one place."""
    names = Counter(
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    )
    return sum(
        isinstance(node, Function)
        and re.match("_[^_]", node.name) is not None
        and (node.end_lineno or 0) - node.lineno < SHORT
        and names[node.name] == 1
        for node in tree.body
    )


def _with_one_importer(trees: Mapping[str, ast.Module]) -> int:
    importers = Counter(
        imported
        for module, tree in trees.items()
        for imported in set(_imports(tree)) & (trees.keys() - {module})
        if not imported.rpartition(".")[2].startswith("__")
    )
    return sum(times == 1 for times in importers.values())


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


def main(
    words: list[str] | None = None, repository: Path = REPOSITORY, record: Path = RECORD
) -> int:
    parser = argparse.ArgumentParser(prog="suite.house")
    parser.add_argument("--lower", action="store_true", help="record the values that have fallen")
    parser.add_argument("--accept", action="store_true", help="record also those that have risen")
    options = parser.parse_args(words)
    recorded: Measures = json.loads(record.read_text()) if record.exists() else {}
    found = measure(repository)
    worse = [name for name, value in found.items() if value > recorded.get(name, value)]
    if options.lower or options.accept:
        kept = {} if options.accept else {name: recorded[name] for name in worse}
        record.write_text(json.dumps({**found, **kept}, indent=2) + "\n")
    for name in () if options.accept else worse:
        print(f"{name}: {found[name]:,}, and {record.name} records {recorded[name]:,}")
    return int(bool(worse) and not options.accept)


if __name__ == "__main__":
    sys.exit(main())
