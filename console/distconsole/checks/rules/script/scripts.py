"""Checks of group ``script`` on the script itself: there, the same, understood by that Python; its paths."""

from __future__ import annotations

import posixpath
import shlex

from distconsole.checks.engine.rule import (
    NotApplicable,
    RuleResult,
    RuleResults,
    fail,
    hint,
    info,
    rule,
    warn,
)
from distconsole.checks.engine.target import Launch
from distconsole.checks.facts.evidence import View
from distconsole.checks.facts.node import OsFacts
from distconsole.checks.facts.script import CodeFile, ScriptFacts, ScriptFile
from distconsole.checks.rules.script.argument_paths import argument_trouble
from distconsole.checks.rules.system.stuck import TOLD, lies_below, stuck_points
from distconsole.checks.rules.wording import dissent, name_hosts
from distconsole.model.requests import Level
from distconsole.model.time_text import utc_text

MAX_LISTED = 8
MISSING = "is not there"
NO_SCRIPT = "the script is not there, or cannot be read"


@rule("script.present", "script", Level.QUICK, ScriptFacts)
@hint("--sync, or rsync.")
def _present(view: View) -> RuleResults:
    """A host without the script or module, or with one that it cannot read; a folder, a binary."""
    launch, facts = view.launch, view.of(ScriptFacts)
    if launch is None:
        return
    if launch.brought:
        yield NotApplicable(f"--sync brings {launch.brought}", tuple(facts))
        return
    inside = launch.module or launch.path.startswith(f"{launch.workdir}/")
    wrong: dict[tuple[str, str], list[str]] = {}
    for name, found in facts.items():
        if inside and (found.workdir.error or found.workdir.kind != "folder"):
            yield NotApplicable("its working folder is not there", (name,))
        elif trouble := _wrong_script(found.script, launch):
            seen = found.script.error or found.script.kind or "nothing"
            wrong.setdefault((trouble, seen), []).append(name)
    for (trouble, seen), names in wrong.items():
        what = f"the module {launch.path}" if launch.module else launch.path
        yield fail(
            f"{what} {trouble} on {name_hosts(names)}",
            names,
            seen=f"stat: {seen}",
            expected="the script in the working folder of every host",
            hint=_bring(launch, names, trouble, nowhere=len(names) == len(facts)),
        )


def _wrong_script(script: ScriptFile, launch: Launch) -> str:
    if launch.module:
        return "" if script.path or script.installed else "is not found"
    if script.late:
        return "does not answer"
    if script.error and script.code not in ("", "ENOENT"):
        return f"cannot be read ({script.error})"
    if script.error:
        return MISSING
    if script.kind == "folder":
        return "is a folder without __main__.py"
    if script.kind != "file":
        return "is no file"
    if not script.readable:
        return "cannot be read"
    if script.binary:
        return "is no text"
    return "is larger than 4 MiB: no script" if script.too_large else ""


def _bring(launch: Launch, hosts: list[str], trouble: str, *, nowhere: bool) -> str:
    """Return what brings the script to hosts that lack it."""
    if launch.module:
        return (
            "--sync brings the code; --workdir names its folder, --env PYTHONPATH=… where it lies"
        )
    if not trouble.startswith(MISSING):
        return f"give the script itself; on {hosts[0]}: ls -ld {shlex.quote(launch.path)}"
    if nowhere and not launch.needs.readable:
        return f"it is not here either: is {launch.path} its name? --workdir names its folder"
    path, listed = shlex.quote(launch.path), " ".join(hosts[:MAX_LISTED])
    return f"distconsole run --sync brings it; or: for h in {listed}; do rsync -a {path} $h:{path}; done"


@rule("script.same", "script", Level.QUICK, ScriptFacts)
@hint("--sync, or rsync.")
def _same(view: View) -> RuleResults:
    """Stale code on one host, also in what the script imports from beside it: a hang hours later.

    The script and the code that it imports from beside it, by content.
    """
    launch = view.launch
    if launch is None:
        return
    facts = {name: each for name, each in view.of(ScriptFacts).items() if each.code is not None}
    yield NotApplicable(
        NO_SCRIPT, tuple(name for name in view.of(ScriptFacts) if name not in facts)
    )
    if launch.brought:
        yield NotApplicable(f"--sync brings {launch.brought}", tuple(facts))
        return
    codes = {name: each.code.files for name, each in facts.items() if each.code is not None}
    blamed: dict[str, None] = {}
    lines: list[str] = []
    differing: list[str] = []
    for file in sorted({path for files in codes.values() for path in files}):
        split = dissent({name: _mark(files.get(file)) for name, files in codes.items()})
        if split is None:
            continue
        differing.append(file)
        blamed.update(dict.fromkeys(split.minority))
        lines += [
            f"{file}: {name_hosts(on)} {_format(codes[on[0]].get(file))}" for _, on in split.groups
        ]
    cut = tuple(name for name, each in facts.items() if each.code is not None and each.code.cut)
    if cut:
        yield info("there is more code than was compared", cut)
    if not differing:
        return
    hosts = [name for name in facts if name in blamed]
    source = next((name for name in facts if name not in blamed), "")
    yield fail(
        f"{differing[0] if len(differing) == 1 else f'{len(differing)} files of {launch.name}'} "
        + (
            f"on {name_hosts(hosts)} differs from the other hosts'"
            if source
            else f"differ: {name_hosts(hosts)}"
        ),
        hosts,
        seen="\n".join([*cut_lines(lines), *_commits(facts)]),
        expected="the same code everywhere: ranks that differ hang in collectives that do not match",
        hint=f"distconsole run --sync brings one copy to all; or from {source or 'the right host'}: "
        f"rsync -a --checksum {shlex.quote(launch.root)}/ {hosts[0]}:{shlex.quote(launch.root)}/",
    )


def _mark(file: CodeFile | None) -> str:
    return "missing" if file is None or file.error else file.sha256


def _format(file: CodeFile | None) -> str:
    if file is None or file.error:
        return "has none" if file is None else f"cannot read it ({file.error})"
    when = utc_text(file.modified)
    return f"has {file.sha256[:12]}, {file.size} bytes of {when}"


def _commits(facts: dict[str, ScriptFacts]) -> list[str]:
    """Return what is checked out, where that differs."""
    heads = {
        name: f"{each.git.head[:10]}{', changed' if each.git.dirty else ''}"
        for name, each in facts.items()
        if each.git is not None and each.git.head
    }
    split = dissent(heads)
    return [] if split is None else [f"git: {split.told('checked out')}"]


def cut_lines(lines: list[str]) -> list[str]:
    """Return the first lines, and how many more there are."""
    more = len(lines) - MAX_LISTED
    return [*lines[:MAX_LISTED], *([f"and {more} more lines"] if more > 0 else [])]


@rule("script.syntax", "script", Level.QUICK, ScriptFacts)
@hint("--python PATH.")
def _syntax(view: View) -> RuleResults:
    """Code that an older Python on the hosts does not understand; Windows' line ends."""
    launch = view.launch
    for name, facts in view.of(ScriptFacts).items():
        python = facts.python.version if facts.python is not None else ""
        if facts.code is None:
            if facts.script.shell and facts.script.crlf:
                yield _line_ends(name, launch)
            elif not facts.script.shell:
                yield NotApplicable(NO_SCRIPT, (name,))
            continue
        found = facts.code.problem
        if found.what:
            yield fail(
                f"Python {python or '?'} does not compile {found.file}: {found.what}",
                (name,),
                seen=f"{found.file}:{found.line}: {found.text}" if found.line else found.what,
                expected="a source that the hosts' Python understands",
                hint=f"python3 -m py_compile {shlex.quote(found.file)}; --python PATH names another one",
            )
        elif facts.script.crlf:
            yield info("the script's #! line ends with CR: ./ does not start it", (name,))


def _line_ends(name: str, launch: Launch | None) -> RuleResult:
    path = launch.path if launch is not None else ""
    return fail(
        f"{posixpath.basename(path)} has the line ends of Windows",
        (name,),
        seen="its #! line ends with CR",
        expected="LF alone: the shell takes CR for a part of every word",
        hint=f"sed -i 's/\\r$//' {shlex.quote(path)}",
    )


@rule("script.arguments", "script", Level.QUICK, ScriptFacts, OsFacts)
@hint("Mount or copy it; chmod.")
def _arguments(view: View) -> RuleResults:
    """A data folder that is missing, empty or another one on some host; an output folder that is read-only.

    Paths among the script's arguments: there, readable or writable, and the same.
    """
    launch, facts = view.launch, view.of(ScriptFacts)
    if launch is None or not launch.paths:
        yield NotApplicable("no paths among the arguments", tuple(facts))
        return
    stuck = stuck_points(view)
    for each in launch.paths:
        told = [name for name in facts if lies_below(each.path, stuck.get(name, ()))]
        yield NotApplicable(TOLD, tuple(told))
        found = {
            name: one.paths[each.path]
            for name, one in facts.items()
            if each.path in one.paths and name not in told
        }
        what = f"{each.option} {each.path}".strip()
        judged = argument_trouble(what, found, output=each.output)
        if judged is not None:
            summary, hosts, seen, hint = judged
            yield warn(
                summary,
                hosts,
                seen=seen,
                expected="a folder that every rank can write to"
                if each.output
                else "the same data on every host",
                hint=hint,
            )


RULES = (_present, _same, _syntax, _arguments)
