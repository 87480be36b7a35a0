"""Checks of group ``script`` on the script itself: there, the same, understood by that Python; its paths."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Hashable, Mapping

from distconsole.checks.engine.results import HERE, NotApplicable, RuleResults, fail, info, warn
from distconsole.checks.engine.rule import HostView, hint, host_rule, rule
from distconsole.checks.engine.target import Launch
from distconsole.checks.facts.evidence import View
from distconsole.checks.facts.node import OsFacts
from distconsole.checks.facts.script import FoundPath, ScriptFacts, ScriptFile, SourceFile
from distconsole.checks.rules.script.launches import (
    NO_SCRIPT,
    get_launch,
    unless_brought,
    unless_launch,
)
from distconsole.checks.rules.system.folders import NUMBERED, TOLD, lies_on_stuck
from distconsole.checks.rules.wording import (
    MAX_LISTED,
    Dissent,
    dissent,
    list_some,
    name_hosts,
    size,
)
from distconsole.model.names import count_text
from distconsole.model.requests import Level
from distconsole.model.time_text import utc_text

MISSING = "is not there"


@hint("--sync, or rsync.")
@host_rule("script.present", "script", Level.QUICK, ScriptFacts, unless=unless_brought)
def _present(host: HostView) -> RuleResults:
    """A host without the script or module, or with one that it cannot read; a folder, a binary."""
    launch, found = get_launch(host.view), host.of(ScriptFacts)
    inside = launch.module or launch.path.startswith(f"{launch.workdir}/")
    if inside and (found.workdir.error or found.workdir.kind != "folder"):
        yield NotApplicable("its working folder is not there")
    elif trouble := _wrong_script(found.script, launch):
        yield fail(
            f"{'the module ' if launch.module else ''}{launch.path} {trouble} on {HERE}",
            seen=f"stat: {found.script.error or found.script.kind or 'nothing'}",
            expected="the script in the working folder of every host",
            hint=_bring(host.view, trouble),
        )


def _wrong_script(script: ScriptFile, launch: Launch) -> str:
    if launch.module:
        return "" if script.path or script.installed else "is not found"
    if script.late:
        return "does not answer"
    if script.error:
        absent = script.code in ("", "ENOENT")
        return MISSING if absent else f"cannot be read ({script.error})"
    wrong = {
        "is a folder without __main__.py": script.kind == "folder",
        "is no file": script.kind != "file",
        "cannot be read": not script.readable,
        "is no text": script.binary,
        "is larger than 4 MiB: no script": script.too_large,
    }
    return next((words for words, holds in wrong.items() if holds), "")


def _bring(view: View, trouble: str) -> str:
    launch = get_launch(view)
    scripts = {name: found.script for name, found in view.of(ScriptFacts).items()}
    lacking = [name for name, each in scripts.items() if _wrong_script(each, launch) == trouble]
    path, hosts = shlex.quote(launch.path), " ".join(lacking[:MAX_LISTED])
    if launch.module:
        return (
            "--sync brings the code; --workdir names its folder, --env PYTHONPATH=… where it lies"
        )
    if trouble != MISSING:
        return f"give the script itself; on {lacking[0]}: ls -ld {path}"
    if len(lacking) == len(scripts) and not launch.traits.readable:
        return f"it is not here either: is {launch.path} its name? --workdir names its folder"
    return f"distconsole run --sync brings it; or: for h in {hosts}; do rsync -a {path} $h:{path}; done"


@hint("--sync, or rsync.")
@rule("script.same", "script", Level.QUICK, ScriptFacts, unless=unless_brought)
def _same(view: View) -> RuleResults:
    """Stale code on one host, also in what the script imports from beside it: a hang hours later."""
    launch, facts = get_launch(view), view.of(ScriptFacts)
    codes = {name: each.code for name, each in facts.items() if each.code is not None}
    yield NotApplicable(NO_SCRIPT, tuple(name for name in facts if name not in codes))
    cut = [name for name, code in codes.items() if code.cut]
    if cut:
        yield info("there is more code than was compared", cut)
    blamed: set[str] = set()
    lines: list[str] = []
    differing: list[str] = []
    for path in sorted({path for code in codes.values() for path in code.files}):
        files = {name: code.files.get(path) for name, code in codes.items()}
        split = dissent(
            {n: f.sha256 if f is not None and not f.error else "missing" for n, f in files.items()}
        )
        if split is not None:
            differing.append(path)
            blamed.update(split.minority)
            for _, on in split.groups:
                lines.append(f"{path}: {name_hosts(on)} {_format(files[on[0]])}")
    if not differing:
        return
    hosts = [name for name in facts if name in blamed]
    source = next((name for name in codes if name not in blamed), "")
    what = differing[0] if len(differing) == 1 else f"{len(differing)} files of {launch.name}"
    how = "differs from the other hosts'" if source else "differs between the hosts"
    root = shlex.quote(launch.root)
    yield fail(
        f"{what} on {name_hosts(hosts)} {how}",
        hosts,
        seen="\n".join([list_some(lines), *_commits(facts)]),
        expected="the same code everywhere: ranks that differ hang in collectives that do not match",
        hint=f"distconsole run --sync brings one copy to all; or from {source or 'the right host'}: "
        f"rsync -a --checksum {root}/ {hosts[0]}:{root}/",
    )


def _format(file: SourceFile | None) -> str:
    if file is None:
        return "has none"
    if file.error:
        return f"cannot read it ({file.error})"
    return f"has {file.sha256[:12]}, {file.size} bytes of {utc_text(file.modified)}"


_CHANGES = {None: ", changes unknown", False: "", True: ", changed"}


def _commits(facts: Mapping[str, ScriptFacts]) -> list[str]:
    heads = {
        name: f"{git.head[:10]}{_CHANGES[git.dirty]}"
        for name, each in facts.items()
        if (git := each.git) is not None and git.head
    }
    split = dissent(heads)
    return [] if split is None else [f"git: {split.told('checked out')}"]


@hint("--python PATH.")
@host_rule("script.syntax", "script", Level.QUICK, ScriptFacts, unless=unless_launch)
def _syntax(host: HostView) -> RuleResults:
    """Code that an older Python on the hosts does not understand; Windows' line ends."""
    facts, path = host.of(ScriptFacts), get_launch(host.view).path
    if facts.code is None and facts.script.shell and facts.script.crlf:
        yield fail(
            f"{posixpath.basename(path)} has the line ends of Windows",
            seen="its #! line ends with CR",
            expected="LF alone: the shell takes CR for a part of every word",
            hint=f"sed -i 's/\\r$//' {shlex.quote(path)}",
        )
    elif facts.code is None and not facts.script.shell:
        yield NotApplicable(NO_SCRIPT)
    elif facts.code is not None and facts.code.problem.what:
        found = facts.code.problem
        python = facts.python.version if facts.python is not None else ""
        yield fail(
            f"Python {python or '?'} does not compile {found.file}: {found.what}",
            seen=f"{found.file}:{found.line}: {found.text}" if found.line else found.what,
            expected="a source that the hosts' Python understands",
            hint=f"python3 -m py_compile {shlex.quote(found.file)}; --python PATH names another one",
        )
    elif facts.code is not None and facts.script.crlf:
        yield info("the script's #! line ends with CR: ./ does not start it")


@hint("Mount or copy it; chmod.")
@rule("script.arguments", "script", Level.QUICK, ScriptFacts, OsFacts, unless=unless_launch)
def _arguments(view: View) -> RuleResults:
    """A data folder that is missing, empty or another one on some host; an output folder that is read-only."""
    launch, facts, systems = get_launch(view), view.of(ScriptFacts), view.of(OsFacts)
    if not launch.paths:
        yield NotApplicable("no paths among the arguments", tuple(facts))
    for each in launch.paths:
        stuck = tuple(name for name in facts if lies_on_stuck(each.path, systems[name]))
        yield NotApplicable(TOLD, stuck)
        found = {
            name: one.paths[each.path]
            for name, one in facts.items()
            if each.path in one.paths and name not in stuck
        }
        what = f"{each.option} {each.path}".strip()
        yield from _check_path(what, found, output=each.output)


def _check_path(what: str, found: Mapping[str, FoundPath], *, output: bool) -> RuleResults:
    late = [name for name, each in found.items() if each.late]
    missing = [name for name, each in found.items() if each.error and not output]
    closed = [n for n, each in found.items() if not (each.writable if output else each.readable)]
    seen, hosts, expected = list(found), late or missing or closed, "the same data on every host"
    on = name_hosts(hosts)
    if late:
        trouble = "does not answer"
        hint = "is its server up? mount | grep of that folder; umount -f -l"
    elif missing:
        on = "any host" if len(missing) == len(found) else on
        trouble = "is not there"
        hint = f"on {name_hosts(missing)}: findmnt; sudo mount -a; or copy it there by rsync -a"
    elif closed:
        seen, place = closed, found[closed[0]].above or found[closed[0]].real
        trouble = "cannot be written to" if output else "cannot be read"
        take_over = f"make it, or take it over: sudo chown $USER {place}"
        hint = f"on {on}: ls -ld {place}; {take_over if output else 'chmod or chown'}"
    elif output or (unlike := _find_unlike(found)) is None:
        return
    else:
        trouble, split = unlike
        hosts = list(split.minority)
        on = name_hosts(hosts) + ("" if split.majority is not None else ": the hosts do not agree")
        hint = "compare them: findmnt -T PATH; find PATH | wc -l; bring one to all by rsync -a"
    yield warn(
        f"{what} {trouble} on {on}",
        hosts,
        seen=list_some([f"{name}: {_format_path(found[name])}" for name in seen]),
        expected="a folder that every rank can write to" if output else expected,
        hint=hint,
    )


def _find_unlike(found: Mapping[str, FoundPath]) -> tuple[str, Dissent[Hashable]] | None:
    """Return whose kind, source, size or number of entries is another one than on the other hosts."""
    shared = {name: bool(each.mount and each.mount.network) for name, each in found.items()}
    numbered = all(each.mount and each.mount.kind in NUMBERED for each in found.values())
    inodes = {name: each.inode for name, each in found.items()}
    aspects: list[tuple[str, Mapping[str, Hashable]]] = [
        ("is of another kind", {name: each.kind for name, each in found.items()}),
        ("comes from elsewhere", shared),
        ("is another folder", inodes if numbered and all(shared.values()) else {}),
        ("has another size", {n: each.size for n, each in found.items() if each.kind == "file"}),
        ("has other contents", {n: e.entries for n, e in found.items() if e.entries is not None}),
    ]
    for verb, values in aspects:
        split = dissent(values)
        if split is not None:
            return verb, split
    return None


def _format_path(found: FoundPath) -> str:
    if found.error:
        verb = "is" if found.writable else "is not"
        return found.error + (f"; {found.above} {verb} writable" if found.above else "")
    parts = [found.kind]
    if found.kind == "file":
        parts.append(size(found.size))
    if found.entries is not None:
        parts.append(count_text(found.entries, "entry", "entries"))
    if found.mount is not None:
        parts.append(f"{found.mount.kind} {found.mount.source} at {found.mount.point}")
    return ", ".join([*parts, *([] if found.readable else ["not readable"])])
