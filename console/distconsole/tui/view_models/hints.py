"""What a finding says to do, as the console says it: by its keys and lines of the prompt; and the command in it, for a shell."""

from __future__ import annotations

import re

from distconsole.grammar.verbs import VERBS
from distconsole.model.findings import Finding
from distconsole.model.run_events import RunFinding
from distconsole.text.check import cure_lines
from distconsole.tui.prompt.keymap import Keymap

_VALUE = r"[^\s;,()'\"`]+"
COMMAND = re.compile(
    rf"\bdistconsole (?P<verb>{'|'.join(VERBS)})\b"
    rf"(?P<rest>(?: --(?:errors|yes|sync|details)\b| --[a-z-]+ {_VALUE}| (?=[^\s;,()]*\d){_VALUE})*)"
)
"""A command in a hint: a verb, names of runs and hosts (which have a digit), options; what follows is prose."""
KEYED = {
    "why": "why {run}",
    "logs": "view logs",
    "top": "view cluster",
    "stop": "stop {run}",
    "check": "check",
}
"""By verb, the line of the key that does the same about the run that is shown."""
OF_RANK = re.compile(r" --rank (\S+)")


def console_hint(hint: str, keymap: Keymap | None = None) -> str:
    """Return ``hint`` with lines of the prompt in place of commands of ours, or keys of the run's screen if a ``keymap`` is given."""

    def put(found: re.Match[str]) -> str:
        verb, rest = found["verb"], found["rest"]
        line, rank = KEYED.get(verb, ""), OF_RANK.search(rest)
        if verb == "logs" and rank:
            line = "lines filter {rank}"
        keys = (
            keymap.keys if keymap is not None and not (verb in ("check", "top") and rest) else ()
        )
        key = next((key.shown for key in keys if key.line == line), "")
        of_rank = f" on rank {rank[1]}" if rank else ""
        quote = "" if found.string[: found.start()].endswith(("'", '"', "`")) else "'"
        return f"{key}{of_rank}" if key else f"{quote}{verb}{rest}{quote}"

    return COMMAND.sub(put, hint)


def command_of(finding: Finding | RunFinding) -> str:
    """Return what to type in a shell about ``finding``: its cure, else the first command of ours, else all that it says to do."""
    cure = finding.cure if isinstance(finding, Finding) else None
    lines = cure_lines(cure) if cure is not None else []
    command = COMMAND.search(finding.hint)
    return "\n".join(lines) or (finding.hint if command is None else command[0])
