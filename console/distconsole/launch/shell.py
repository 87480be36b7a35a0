"""Reads a shell script by editors' grammar of bash: the commands that start ranks, and its end.

A variable has its value in the script; one that the script does not set stays as written (``$NAME``).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from distconsole.grammar.pasting.read import (
    ASSIGNMENT,
    MODULES,
    OWN_STARTS,
    PYTHON_NAME,
    RAY_DRIVER,
    SUBCOMMANDS,
    WRAPPERS,
    behind_options,
)
from distconsole.grammar.pasting.starters import STARTERS
from distconsole.model.job import ShellScript, ShellStart

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

SHELLS = ("bash", "sh", "dash", "ksh", "zsh", "fish")
SHELL_ENDINGS = (".sh", ".bash", ".slurm", ".sbatch")
DETACHERS = ("screen", "tmux", "at", "batch", "daemonize", "systemd-run", "sbatch", "qsub", "bsub")
"""Programs that return before the command that they started has ended."""
REMOTE = ("ssh", "pdsh", "clush")
SSH_VALUES = "BbcDEeFIiJLlmOoPpQRSWw"
"""Letters of ssh's options that take a value."""
AROUND = (
    *(*WRAPPERS, *DETACHERS, *REMOTE),
    *("builtin", "sudo", "setsid", "nice", "ionice", "chrt", "numactl", "taskset", "timeout"),
    *("unbuffer", "flock", "xargs", "parallel", "enroot", "nsys", "ncu", "strace", "perf"),
)
"""Programs that start the command in their arguments."""
RUNNERS = (
    *("conda", "mamba", "micromamba", "uv", "poetry", "pipenv", "pdm", "hatch", "pixi"),
    *("coverage", "singularity", "apptainer", "docker", "podman"),
)
"""Programs that do so after ``run`` or ``exec``."""
BUILDERS = ("make", "just")
"""Programs that start commands from a file of theirs."""
PLACE = ("NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
"""Variables that a run sets for the one process of each host: the script's defaults do not apply."""
SUBSTITUTION = re.compile(r"\$\((?!\()|`")
"""A command with unknown output."""
UNREAD = (
    *("test_command", "process_substitution", "command_substitution", "comment", "file_redirect"),
)
"""Parts of a script whose commands start no training: the script reads their output, or runs nothing."""
BRANCHES = ("if_statement", "case_statement", "for_statement", "while_statement")
OTHER_BRANCH = ("else_clause", "elif_clause", "case_item")
LOOPS = ("for_statement", "while_statement", "c_style_for_statement")
BATCH_SYSTEMS = {
    "SBATCH": ("Slurm", "SLURM_"),
    "PBS": ("PBS", "PBS_"),
    "BSUB": ("LSF", "LSB_"),
    "$": ("Grid Engine", "PE_HOSTFILE|NSLOTS|NHOSTS"),
}
"""Directive of a job file -> the system, and the prefix of its variables."""
DIRECTIVE = re.compile(rf"^#({'|'.join(map(re.escape, BATCH_SYSTEMS))})[ \t]+-", re.MULTILINE)
MAX_DEPTH = 4
"""Scripts that start scripts, and texts that are read again (``eval``, ``bash -c``)."""


def read_shell(
    source: str, folders: Sequence[Path] = (), values: Mapping[str, str | list[str]] | None = None
) -> ShellScript:
    """Return the programs that a shell script starts with the variables ``values``.

    Nested scripts are read from the first of ``folders`` that has them.
    """
    found_system = DIRECTIVE.search(source)
    system = found_system[1] if found_system else ""
    lines = (line.split() for line in source.splitlines() if line.startswith(f"#{system} "))
    directives = [" ".join(words[1:]).partition(" #")[0] for words in lines if words[1:]]
    in_job = re.search(rf"\$\{{?({BATCH_SYSTEMS[system][1]})", source) if system else None
    try:
        import tree_sitter  # noqa: PLC0415 - most scripts are Python's
        import tree_sitter_bash  # noqa: PLC0415
    except ImportError:
        found = ShellScript(unread="tree-sitter-bash is not installed here")
    else:
        parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))
        reader = _Reader(parser, folders, values or {})
        try:
            reader.read(source)
            found = reader.found
        except RecursionError:
            found = ShellScript(unread="it is nested too deeply")
    return replace(found, system=system, directives=tuple(directives), in_job=in_job is not None)


class _Reader:
    """Reads a script in the order of its lines."""

    def __init__(
        self, parser: Parser, folders: Sequence[Path], values: Mapping[str, str | list[str]]
    ) -> None:
        self.found = ShellScript()
        self._parser = parser
        self._folders = folders
        self._values: dict[str, list[str | list[str]]] = {name: [v] for name, v in values.items()}
        self._functions: set[str] = set()
        self._running: list[ShellStart] = []
        self._depth = self._branches = self._loops = self._line = 0
        self._remote = False

    def read(self, source: str, *, background: bool = False) -> None:
        if self._depth >= MAX_DEPTH:
            return
        root = self._parser.parse(source.encode(errors="replace")).root_node
        outer, self._depth = self._line, self._depth + 1
        if root.has_error and not self.found.unread:
            line = next((each.start_point[0] + 1 for each in _errors(root)), 1)
            self.found = replace(self.found, unread=f"line {line} is not understood")
        self._walk(root, background)
        self._line, self._depth = outer, self._depth - 1

    def _walk(self, node: Node, background: bool) -> None:
        if node.type in UNREAD:
            return
        if self._depth == 1:
            self._line = node.start_point[0] + 1
        match node.type:
            case "command":
                self._command(node, background)
            case "variable_assignment":
                self._assign(node)
            case "heredoc_redirect":
                self._here(node, background)
            case _:
                self._inside(node, background)

    def _inside(self, node: Node, background: bool) -> None:
        """Walk through the children of a statement."""
        if node.type == "function_definition":
            self._functions.add(_text(node.child_by_field_name("name")))
        self._branches += node.type in BRANCHES
        self._loops += node.type in LOOPS
        before, after = self._running, list[ShellStart]()
        for child, behind in zip_longest(node.children, node.children[1:]):
            if child.type in OTHER_BRANCH:
                after, self._running = after + self._running, list(before)
            self._walk(child, background or (behind is not None and behind.type == "&"))
        self._running = list(dict.fromkeys(self._running + after))
        self._branches -= node.type in BRANCHES
        self._loops -= node.type in LOOPS

    def _here(self, node: Node, background: bool) -> None:
        """Read a here-document for a shell, and the rest of its line."""
        body = node.parent.child_by_field_name("body") if node.parent else None
        piped = [
            each for child in node.children if child.type == "pipeline" for each in child.children
        ]
        commands = [each for each in (body, *piped) if each is not None and each.type == "command"]
        words = [word for each in commands for word in self._words(each)]
        for child in node.children:
            if child.type != "heredoc_body":
                self._walk(child, background)
            elif any(_name(word) in (*SHELLS, *REMOTE) for word in words):
                self.read(_text(child), background=background)

    def _assign(self, node: Node) -> None:
        name, value = _text(node.child_by_field_name("name")), node.child_by_field_name("value")
        words = self._expand(value) if value is not None else []
        is_array = value is not None and value.type == "array"
        new: str | list[str] = words if is_array else " ".join(words)
        before = self._values.get(name, [])
        if before and any(child.type == "+=" for child in node.children):
            old = before[-1]
            new = f"{old}{new}" if isinstance(old, str) else [*old, *words]
        # In a branch it may keep the value from before.
        self._values[name] = [*before, new] if self._branches else [new]

    def _command(self, node: Node, background: bool) -> None:
        """Note the programs that a command starts; for a variable as its name, with each value that it may have."""
        name = _text(node.child_by_field_name("name")).strip('"${}[@]')
        values, starts = self._values.get(name, []), len(self.found.starts)
        self._begin(self._words(node), background)
        for value in reversed(values[:-1]):
            if len(self.found.starts) == starts:
                self._values[name] = [value]
                self._begin(self._words(node), background)
        if values:
            self._values[name] = values

    def _words(self, node: Node) -> list[str]:
        parts = (child for child in node.children if child.type != "variable_assignment")
        return [word for child in parts for word in self._expand(child)]

    def _begin(self, words: list[str], background: bool) -> None:
        """Record the launcher or the script that a command starts; ``words`` are its name and arguments."""
        while words and ASSIGNMENT.fullmatch(words[0]):
            words = words[1:]
        if not words:
            return
        name, rest = _name(words[0]), words[1:]
        follows = {"tail": ("-f", "-F", "--follow"), "kill": ("-0",)}.get(name, ())
        if name in ("wait", "fg") or any(word in rest for word in follows):
            running, self._running = self._running, []
            starts = (
                replace(each, left=each.left and each not in running) for each in self.found.starts
            )
            self.found = replace(self.found, starts=tuple(starts))
        elif starter := _starter(words):
            start = ShellStart(starter, self._line, tuple(words), background, self._remote)
            self._start(start)
        elif _passes_on(name, rest) or name in self._functions:
            remote, self._remote = self._remote, self._remote or name in REMOTE
            if name == "ssh":  # which takes options on both sides of the host
                rest = behind_options(behind_options(rest, SSH_VALUES)[1:], SSH_VALUES)
            forks = name in DETACHERS or (name == "setsid" and {"-f", "--fork"} & set(rest))
            self._inner(rest, background or bool(forks), texts=name not in self._functions)
            self._remote = remote
        else:
            self._read_on(words, background)

    def _read_on(self, words: list[str], background: bool) -> None:
        name, rest = _name(words[0]), words[1:]
        if name == "eval":
            self.read(" ".join(rest), background=background)
        elif name in (*SHELLS, "source", "."):
            self._script(name, rest, background)
        elif PYTHON_NAME.fullmatch(name):
            option, target = _python_target(rest)
            if target and not option:
                self.found = replace(self.found, pythons=(*self.found.pythons, target))
        elif name.endswith(SHELL_ENDINGS):
            self._script(name, words, background)
        elif name in BUILDERS:
            self.found = replace(self.found, unknown=(*self.found.unknown, name))
        elif words[0].startswith("$") and not words[0].startswith(("$(", "$@", "$*", "$1")):
            self.found = replace(self.found, unknown=(*self.found.unknown, words[0]))

    def _start(self, start: ShellStart) -> None:
        beside = self.found.beside
        if not beside and not self._remote:
            other = self._running[:1] or ([start] if self._loops and start.left else [])
            beside = (*other, start) if other else ()
        if start.left:
            self._running = [*self._running, start]
        self.found = replace(self.found, starts=(*self.found.starts, start), beside=beside)

    def _inner(self, words: list[str], background: bool, *, texts: bool) -> None:
        """Note the program that starts in ``words``: as words of their own, or within a text in one of them."""
        for at, word in enumerate(words):
            name = _name(word)
            known = name in (*STARTERS, *AROUND, *RUNNERS, *SHELLS, *self._functions)
            # $PWD:/data is a value of a container's option.
            if known or PYTHON_NAME.fullmatch(name) or (word[:1] == "$" and ":" not in word):
                return self._begin(words[at:], background)
            if texts and any(mark in word for mark in " ;\n"):
                self.read(word, background=background)
        return None

    def _script(self, shell: str, words: list[str], background: bool) -> None:
        """Read the text after ``-c``, or the script that is a shell's argument."""
        letters = ""
        while words and words[0][:1] in ("-", "+"):
            option, *words = words
            if option in ("-", "--"):
                break
            short = "" if option.startswith("--") else option
            letters += short
            words = words[short.lower().count("o") + (option in ("--rcfile", "--init-file")) :]
        if "c" in letters and words:
            return self.read(words[0], background=background)
        if not words or words[0] == "/dev/stdin" or "s" in letters:
            return None
        for path in (
            path
            for folder in self._folders
            for path in (folder / words[0], folder / _name(words[0]))
        ):
            try:
                return self.read(path.read_text("utf-8", "replace"), background=background)
            except (OSError, ValueError):
                continue
        if shell not in ("source", "."):  # those set variables
            self.found = replace(self.found, unknown=(*self.found.unknown, words[0]))
        return None

    def _expand(self, node: Node) -> list[str]:
        match node.type:
            case "raw_string" | "ansi_c_string":
                return [_text(node).lstrip("$")[1:-1]]
            case "string":
                return self._quoted(node)
            case "array":
                return [word for child in node.named_children for word in self._expand(child)]
            case "concatenation" | "command_name":
                words = [""]
                for child in node.children:
                    first, *more = self._expand(child) or [""]
                    words = [*words[:-1], words[-1] + first, *more]
                return words
            case "simple_expansion" | "expansion":
                value = self._value(node)
                return value if isinstance(value, list) else value.split()
            case "command_substitution":
                return [_program_sought(node) or _text(node)]
            case "file_redirect" | "comment" | "herestring_redirect":
                return []
            case "arithmetic_expansion":
                return ["".join(_text(node).split())]
            case _:
                return [_text(node).replace("\\\n", "").replace("\\", "")]

    def _quoted(self, node: Node) -> list[str]:
        """Return a text in double quotes with its variables replaced; an array gives a word an element."""
        parts = [child for child in node.named_children if child.type != "string_content"]
        if len(parts) == 1 and _text(parts[0]) == _text(node)[1:-1]:
            value = self._value(parts[0])
            return value if isinstance(value, list) else [value]
        text, whole, base, at = "", node.text or b"", node.start_byte, 1
        for part in parts:
            value, written = self._value(part), _text(part)
            text += whole[at : part.start_byte - base].decode(errors="replace")
            text += written[
                : -len(written.lstrip())
            ]  # a blank between two variables is the second's
            text += value if isinstance(value, str) else " ".join(value)
            at = part.end_byte - base
        text += whole[at:-1].decode(errors="replace")
        return [text.replace("\\\n", "").replace('\\"', '"').replace("\\$", "$")]

    def _value(self, node: Node) -> str | list[str]:
        if node.type == "command_substitution":
            return _program_sought(node) or _text(node)
        if node.type == "arithmetic_expansion":
            return self._expand(node)[0]
        inner = next((each for each in node.named_children if each.type == "subscript"), node)
        names = (
            _text(each) for each in inner.named_children if each.type.endswith("variable_name")
        )
        name = next(names, "")
        value = self._values.get(name, [_text(node).lstrip()])[-1]
        if name in self._values:
            several = isinstance(value, str) and SUBSTITUTION.search(value)
            return _text(node).lstrip() if several else value
        default = next(
            (each for each in node.children if each.type in (":-", "-", ":=", "=")), None
        )
        if default is None or name in PLACE:
            return _text(node).lstrip()
        behind = node.children[node.children.index(default) + 1 : -1]
        return " ".join(word for each in behind for word in self._expand(each)).strip()


def _errors(node: Node) -> Iterator[Node]:
    if node.type == "ERROR" or node.is_missing:
        yield node
    for child in node.children:
        yield from _errors(child) if child.has_error or child.is_missing else ()


def _passes_on(name: str, rest: Sequence[str]) -> bool:
    """True if a program starts the command in its arguments."""
    if name in RUNNERS:
        return "run" in rest or "exec" in rest
    return name in AROUND and not (name == "command" and rest[:1] in (["-v"], ["-V"]))


def _program_sought(node: Node) -> str:
    """Return the program that ``$(which NAME)`` or ``$(command -v NAME)`` looks for."""
    words = _text(node).strip("$()` ").split()
    return words[-1] if words[:1] == ["which"] or words[:2] == ["command", "-v"] else ""


def _starter(words: list[str]) -> str:
    """Return a readable name of the rank starter in a command; empty without one."""
    name = _name(words[0])
    if name in STARTERS:
        subcommand = "" if "-" in name else SUBCOMMANDS.get(STARTERS[name], ("",))[0]
        return (
            f"{name} {subcommand}".strip() if words[1:2] == [subcommand] or not subcommand else ""
        )
    behind = next((word for word in OWN_STARTS.get(name, ()) if word in ("", *words[1:2])), None)
    if behind is not None:
        return f"{name} {behind}".strip()
    if not (PYTHON_NAME.fullmatch(name) or words[0].startswith("$")):
        return ""
    option, target = _python_target(words[1:])
    if option == "m":
        return target if target in MODULES or RAY_DRIVER.fullmatch(target) else ""
    return _name(target) if not option and _name(target) in STARTERS else ""


def _python_target(words: list[str]) -> tuple[str, str]:
    """Return what Python runs, behind the letter of the option that names it (``m``, ``c``; empty of a script)."""
    while words and words[0].startswith("-") and words[0] != "-":
        option, *words = words
        letter = None if option.startswith("--") else re.search("[cmWX]", option)
        if letter is None:
            continue
        value = option[letter.end() :]
        if not value:
            value, words = "".join(words[:1]), words[1:]
        if letter[0] in "cm":
            return letter[0], value
    return "", "".join(words[:1])


def _name(word: str) -> str:
    return posixpath.basename(word)


def _text(node: Node | None) -> str:
    return (node.text or b"").decode(errors="replace") if node is not None else ""
