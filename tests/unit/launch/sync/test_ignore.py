"""Ignore files mean what Git says they mean: Git itself is asked."""

import os
import subprocess
from pathlib import Path

import pytest

from distconsole.launch.sync.code import collect

FILES = (
    "a.txt", "b.log", "keep.log", "#note", "!bang", "two words ", "a[b].c", "x-y", "back\\slash",
    "doc/a.txt", "doc/deep/a.txt", "doc/deep/er/a.txt", "build/x", "src/build/y", "src/build.py",
    "src/a1.o", "src/b2.o", "src/ab.o", "foo/bar/baz", "foo/x/bar/baz", "foo/bar", "abc/def/ghi",
    "logs/debug.log", "logs/keep.log", "src/logs/x.log", ".env", "src/.env", "é.txt", "z/q.tmp",
)  # fmt: skip

PATTERNS = (
    "*.log", "*.log\n!keep.log", "/a.txt", "a.txt", "doc/", "/doc", "doc/*.txt", "doc/**/a.txt",
    "**/a.txt", "doc/**", "build", "build/", "/build/", "src/*.o", "src/[ab]?.o", "src/[!a]*.o",
    "src/[^a]*.o", "src/[a-b][0-9].o", "foo/**/baz", "foo/**/bar", "foo/*/baz", "**/deep", "\\#note",
    "\\!bang", "two words\\ ", "two words ", "a\\[b\\].c", "a[[]b].c", "# a comment", "", "   ",
    "*", "*\n!*/\n!*.txt", "/*\n!/doc", "?.txt", "**", "***", "a**", "doc/deep**", "abc/**/ghi",
    "abc/**def/ghi", "[z-a]", "[", "a.txt/", "!a.txt", "logs/*\n!logs/keep.log", ".*", "x[-]y",
    "x[+--]y", "[[:alpha:]].txt", "[[:digit:]]*", "src/[[:lower:]][[:digit:]].o", "b.log\r", "\\",
    "[x-a]?y", "[a-]*", "[-a]*", "[\\a-\\c].txt", "??.txt", "[é].txt", "é*", "[", "a.txt\\", "/src/*/", "*/a.txt", "*/*/a.txt", "[]x]", "[!]]-y", "[x]-[y]", "foo//bar", "[a-z", "back\\\\slash",
)  # fmt: skip


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    subprocess.run(["git", "init", "-q", root], check=True)
    for name in FILES:
        path = root / name
        if path.is_dir() or any(parent.is_file() for parent in path.parents):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    (root / "doc" / ".gitignore").unlink(missing_ok=True)
    return root


def kept_by_git(root: Path) -> set[str]:
    done = subprocess.run(
        ["git", "-c", "core.excludesFile=/dev/null", "ls-files", "-z", "-o", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
    )
    return set(os.fsdecode(done.stdout).split("\0")) - {""}


def kept_by_us(root: Path) -> set[str]:
    return {file.path for file in collect(root, str).files}


@pytest.mark.parametrize("text", PATTERNS)
def test_git_and_we_leave_out_the_same(tree: Path, text: str) -> None:
    (tree / ".gitignore").write_text(text + "\n", newline="")
    assert kept_by_us(tree) == kept_by_git(tree)


def test_a_deeper_file_adds_to_the_rules_and_wins(tree: Path) -> None:
    (tree / ".gitignore").write_text("*.txt\n")
    deeper = tree / "doc" / ".gitignore"
    deeper.write_text("!a.txt\n/deep/er\n")
    try:
        kept = kept_by_us(tree)
        assert kept == kept_by_git(tree)
        assert "doc/deep/a.txt" in kept
        assert "a.txt" not in kept
        assert "doc/deep/er/a.txt" not in kept
    finally:
        deeper.unlink()
