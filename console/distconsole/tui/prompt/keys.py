"""Our keys: each types a line of the grammar."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from distconsole.grammar.verbs import VERBS

VIEWS = (
    *("cluster", "check", "launch", "run", "logs", "runs"),
    *("compare", "transcript", "jobs", "help"),
)


CHARACTERS = {
    "comma": ",",
    "full_stop": ".",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "dollar_sign": "$",
    "at": "@",
    "slash": "/",
    "colon": ":",
    "question_mark": "?",
}
"""Textual's names of keys, and the usual ones."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key.

    Attributes:
        line: The line that it types; ``{run}``, ``{check}`` and ``{host}`` are filled in from the screen.
        asks: True if the line is put into the prompt for Enter to confirm, because it is dangerous
            or unfinished.
        views: The views whose line of keys shows it; empty for all.
        only: True if it works only while one of ``views`` is on the screen.
    """

    key: str
    line: str
    label: str
    asks: bool = False
    views: tuple[str, ...] = ()
    only: bool = False

    @property
    def inside(self) -> bool:
        """True for an ordinary letter, which works only while the view has the focus."""
        return not re.fullmatch(r"(ctrl|alt)\+.+|f\d+|insert", self.key)

    @property
    def shown(self) -> str:
        if self.key in CHARACTERS:
            return CHARACTERS[self.key]
        if self.key.startswith("ctrl+"):
            return f"^{self.key.removeprefix('ctrl+').upper()}"
        return self.key.capitalize() if len(self.key) > 1 else self.key

    @property
    def does(self) -> str:
        """Its description in help: by its line, or its label."""
        return DOES.get(self.line.strip(), self.label)

    def works_in(self, view: str) -> bool:
        return not (self.inside or self.only) or view in self.views


DOES = {
    "sort": "sort by the next column, or a field",
    "filter": "show what matches",
    "group": "group by a field",
    "mark {run}": "mark a run to be compared",
    "mine": "leave out runs that were launched elsewhere",
    "compare {runs}": "compare the marked runs",
    "report {run} -o {run}.html": "write the run as a page",
    "rerun {run}": "run the same again",
    "axis next": "curves along steps, time or samples",
    "plots next": "curves of other figures",
    "plots": "plots, or the error of a failed run",
    "heat": "heat map of the ranks, or the table",
    "heat next": "heat map of the next figure",
    "heat span": "heat map of minutes or of the whole run",
    "lines filter {rank}": "log of the rank under the cursor",
    "why {run}": "where each rank is, and who is waited for",
    "trace {run} -o {run}-trace.json.gz": "profile the ranks into a file",
    "export {run} --format csv -o {run}.csv": "export the run as CSV",
    "lines fold": "fold equal lines, or all lines",
    "lines digits": "fold lines that differ in numbers",
    "lines wrap": "wrap long lines",
    "lines times": "show when lines were printed",
    "lines at": "go to a time",
    "repeat {check}": "repeat this check",
    "init": "set up: hosts, host keys and Python, kept in distconsole.toml",
    "demo": "demo: two nodes on this machine, a slow rank and a failure",
}
"""Help for keys with too short a label, by their lines."""

TABS = (
    Key("f2", "view cluster", "cluster"),
    Key("f3", "view check", "check"),
    Key("ctrl+n", "view launch", "launch"),
    Key("f4", "view run", "run"),
    Key("f5", "view logs", "logs"),
    Key("f6", "view runs", "runs"),
)
"""Keys in the title."""

SEARCHED = tuple(view for view in VIEWS if view not in ("run", "check"))
"""Views in which ``n`` goes on with a search; the others have marks to go to."""
SEARCH_LINES = ("lines next", "lines previous")
"""Lines that go on with a search."""

KEYS: tuple[Key, ...] = (
    *TABS,
    Key("f1", "help", "help"),
    Key("f7", "check", "check", views=("cluster", "check")),
    Key("f8", "stop {run}", "stop run", views=("run", "logs")),
    Key("f9", "view transcript", "messages", views=("check", "runs", "help")),
    Key("ctrl+s", "launch start", "start", views=("launch",), only=True),
    Key("ctrl+o", "launch last", "last launches", views=("launch", "runs")),
    Key("ctrl+y", "launch copy", "copy command", views=("launch",), only=True),
    Key("s", "sort", "sort", views=("run",)),
    Key("m", "mark {run}", "mark", views=("runs",)),
    Key("c", "compare {runs}", "compare", views=("runs",)),
    Key("a", "axis next", "step/time/samples", views=("compare",)),
    Key("c", "plots next", "other plots", views=("compare",)),
    Key("s", "sort ", "sort", True, ("cluster", "runs", "check")),
    Key("f", "filter ", "filter", True, ("cluster", "run", "runs")),
    Key("g", "group ", "group", True, ("cluster", "runs")),
    Key("o", "mine", "mine", views=("runs",)),
    Key("r", "report {run} -o {run}.html", "report", True, ("runs",)),
    Key("R", "rerun {run}", "the same again", True, ("runs",)),
    Key("p", "plots", "plots/error", views=("run",)),
    Key("c", "plots next", "other plots", views=("run",)),
    Key("h", "heat", "heat map", views=("run",)),
    Key("v", "heat next", "by what", views=("run",)),
    Key("t", "heat span", "since when", views=("run",)),
    Key("l", "lines filter {rank}", "its log", views=("run",)),
    Key("W", "why {run}", "why", views=("run", "logs")),
    Key("T", "trace {run} -o {run}-trace.json.gz", "trace", True, ("run",)),
    Key("e", "export {run} --format csv -o {run}.csv", "export", True, ("run", "runs")),
    Key("slash", "find ", "find", True, VIEWS),
    Key("n", SEARCH_LINES[0], "next found", views=SEARCHED),
    Key("N", SEARCH_LINES[1], "found before", views=SEARCHED),
    Key("f", "filter ", "filter", True, ("logs",)),
    Key("x", "lines first-error", "first error", views=("logs",)),
    Key("e", "lines error", "error", views=("logs",)),
    Key("E", "lines error-before", "error before", views=("logs",)),
    Key("o", "lines fold", "fold", views=("logs",)),
    Key("d", "lines digits", "digits", views=("logs",)),
    Key("w", "lines wrap", "wrap", views=("logs",)),
    Key("t", "lines times", "times", views=("logs",)),
    Key("a", "lines at ", "at a time", True, ("logs",)),
    Key("y", "lines copy", "copy", views=("logs",)),
    Key("c", "check --hosts {host}", "check this host", views=("cluster",)),
    Key("enter", "open", "open", views=("cluster", "check")),
    Key("r", "repeat {check}", "this again", views=("check",)),
    Key("m", "pairs", "pairs", views=("check",)),
    Key("i", "interfaces", "interfaces", views=("check",)),
    Key("f", "filter ", "filter", True, ("check",)),
    Key("x", "cancel", "cancel", views=("check",)),
    Key("y", "copy", "copy command", views=("run", "check")),
    Key("f10", "theme", "theme", views=("help",)),
    Key("x", "cancel {job}", "cancel", views=("jobs",)),
    Key("ctrl+q", "quit", "quit"),
    Key("colon", "", "prompt", views=VIEWS),
    Key("question_mark", "help", "help", views=VIEWS),
    Key("q", "back", "back", views=VIEWS),
    Key("Q", "back all", "leave", views=VIEWS),
    Key("S", "screenshot", "screenshot", views=VIEWS),
)

REPLAYED = ("run", "logs", "cluster")
"""Views that show a moment of a past run."""

REPLAY_KEYS: tuple[Key, ...] = (
    Key("space", "play toggle", "play/pause", views=REPLAYED),
    Key("comma", "at -1s", "a second back", views=REPLAYED),
    Key("full_stop", "at +1s", "on", views=REPLAYED),
    Key("left_square_bracket", "at previous", "mark before", views=REPLAYED),
    Key("right_square_bracket", "at next", "next", views=REPLAYED),
    Key("0", "at start", "start", views=REPLAYED),
    Key("dollar_sign", "at end", "end", views=REPLAYED),
    Key("at", "at ", "a time", True, views=REPLAYED),
)
"""Keys that work while a past run is shown; the time bar shows them."""

FIRST_KEYS: tuple[Key, ...] = (
    Key("enter", "open", "use", views=("cluster",)),
    Key("i", "init", "set up", views=("cluster",)),
    Key("d", "demo", "demo", views=("cluster",)),
    Key("t", "hosts localhost", "this machine", views=("cluster",)),
)
"""Keys that work while no hosts are chosen."""

SCREEN_VERBS = {
    "hosts": "the hosts that check, run, top and the form mean: hosts gpu1,gpu2 or --hostfile FILE or --cluster NAME; alone says which",
    "launch": "a form for run, filled in with the line that is being typed; launch last: what was launched before; launch start, launch copy",
    "view": "show one of: cluster check launch run logs runs compare transcript jobs help; or a run: view RUN",
    "sort": "ranks by: worst rank own ms data step costs p95 samples/s loss, as the headings say; 'sort' alone takes the next; on the cluster, on a check and in the list of runs by any field: sort util, sort loss up",
    "group": "GPUs on the cluster screen, or runs in their list, by a field: host name user rank, script state; none ends it",
    "watch": "say when a condition comes true and when it ends: watch state=failed; alone lists; watch --hosts gpu1,gpu2: training that others have started",
    "unwatch": "end a watch: its number, or all",
    "heat": "heat map: ranks and moments as colours, and back; heat QUANTITY (step data rate use or a metric), heat span: minutes or the whole run",
    "plots": "curves, or the error of a failed run; plots next: other curves; plots loss GPU: these first; also of compared runs",
    "open": "everything about the host, the finding, the check or the pair of hosts under the cursor",
    "copy": "what to type about the finding under the cursor, or the newest one of the run, to the terminal's clipboard",
    "repeat": "one check of the last one again: repeat CHECK",
    "pairs": "the pairs of hosts as a matrix, and back: arrows move, N goes to the next in trouble",
    "interfaces": "which interface each engine takes on each host, and back",
    "jobs": "what goes on, for how long, and how it can be ended",
    "cancel": "end what goes on, never a run that has begun: cancel (the foremost), cancel NUMBER, cancel all",
    "filter": "on cluster, run and runs only what matches: filter util<10 and host~gpu0, filter state=failed and age<1d; on a check findings and grid: filter node3 net, filter outcome=fail and host~gpu0; in the logs only lines: 0-3,8 host:gpu* out err errors since:10m /regex/ -without word; alone shows all",
    "find": "search what is on the screen; in the run and its logs, their lines: words, or a regular expression; n and N go on",
    "lines": "in the logs: error error-before first-error next previous end fold digits wrap times copy, at TIME",
    "mine": "in the list of runs only those that were launched from here, and all again: filter from=here",
    "mark": "a run in the list, to be compared with others: mark RUN; once more takes the mark away",
    "axis": "what the curves of compared runs lie along: step, time, samples; alone the next",
    "at": "a past run as it was: at 14:05:10, at 90s (after its start), at +30s, at 40%, at step 1200; at next and previous: marks; at start, at end",
    "play": "let a past run go on, all of it in two minutes at most; play toggle stops it again",
    "pause": "let a past run stand at this moment",
    "alias": "a short name for a line, kept: alias NAME = LINE ($1 to $9 and $@ are its arguments); alone lists",
    "unalias": "forget an alias: unalias NAME",
    "save": "write the messages into a file: save [FILE] [--yes]",
    "clear": "empty the transcript",
    "yes": "the answer to the question above the prompt",
    "no": "the answer to the question above the prompt",
    "screenshot": "save the screen as an SVG file, in this folder if no FILE is said",
    "theme": "dark, light, contrast or terminal (its own sixteen colours), or any of Textual's; alone takes the next; kept",
    "back": "to what was shown before; from the first view out of the console, which asks while something goes on; back all: out of it from any view",
    "quit": "leave; a run goes on without the console",
}
"""Verbs about the screen alone, for the prompt only."""

PROMPT_VERBS: Mapping[str, str] = {**VERBS, **SCREEN_VERBS}
"""All verbs of the prompt with descriptions: palette, completion and help read it."""

ALIASES = {**dict.fromkeys(("exit", "q", ":q", "q!", "wq", "qa"), "quit"), "?": "help"}
"""Words that fingers type by themselves."""

SORTS = ("worst", "rank", "own", "ms", "data", "step", "costs", "p95", "samples/s", "loss")
"""Orders of the ranks: troubled ones and then the slowest first, the others by number; by number; by own time, step time,
share of the step spent waiting for data (largest first); by step (least far first); by costs and p95 (largest first);
by samples a second (fewest first); by loss (highest first)."""

WHATS = {
    "error": "the next error",
    "error-before": "the one before",
    "first-error": "the error that was printed first on any rank",
    "next": "the next line that was found",
    "previous": "the one before",
    "end": "the end, and follow",
    "fold": "one line for what several ranks say, or all lines",
    "digits": "fold lines, too, that differ in their numbers",
    "wrap": "long lines on several, or cut",
    "times": "with or without the time of day",
    "copy": "copy the line to the terminal's clipboard",
    "at": "at 14:05:10, at 90s (after the first line): go there",
}
"""Arguments of ``lines``, and their effects."""
