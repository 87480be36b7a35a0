"""Keys as text of the grammar, so that a key and the prompt can never mean different things."""

from __future__ import annotations

from dataclasses import dataclass

VIEWS = ("cluster", "check", "run", "logs", "runs", "transcript", "help")


@dataclass(frozen=True, slots=True)
class Key:
    """One key.

    Attributes:
        key: What is pressed.
        line: What it types; ``{run}``, ``{check}`` and ``{host}`` stand for what is on the screen.
        label: What the line of keys calls it.
        asks: True if the line is put into the prompt for Enter to confirm, because it is dangerous
            or unfinished.
        views: The views whose line of keys shows it; empty for all, ("",) for none.
        inside: True if it is an ordinary letter, which works only while the view has the focus.
    """

    key: str
    line: str
    label: str
    asks: bool = False
    views: tuple[str, ...] = ()
    inside: bool = False

    @property
    def shown(self) -> str:
        """The key as people write it."""
        return self.key.replace("ctrl+", "^").capitalize() if len(self.key) > 1 else self.key

    def works_in(self, view: str) -> bool:
        """Whether the key means this while ``view`` is on the screen."""
        return not self.inside or view in self.views


TABS = (
    Key("f2", "view cluster", "cluster"),
    Key("f3", "view check", "check"),
    Key("f4", "view run", "run"),
    Key("f5", "view logs", "logs"),
    Key("f6", "view runs", "runs"),
)
"""Keys that the title shows."""

KEYS: tuple[Key, ...] = (
    *TABS,
    Key("f1", "help", "help"),
    Key("f7", "check", "check", views=("cluster", "check")),
    Key("f8", "stop {run}", "stop run", asks=True, views=("run", "logs")),
    Key("f9", "view transcript", "said so far", views=("check", "runs", "help")),
    Key("s", "sort", "sort", views=("run",), inside=True),
    Key("s", "sort ", "sort", True, ("cluster",), inside=True),
    Key("f", "filter ", "filter", True, ("cluster", "run"), inside=True),
    Key("g", "group ", "group", True, ("cluster",), inside=True),
    Key("p", "plots", "plots/error", views=("run",), inside=True),
    Key("c", "plots next", "other plots", views=("run",), inside=True),
    Key("h", "heat", "heat map", views=("run",), inside=True),
    Key("v", "heat next", "by what", views=("run",), inside=True),
    Key("t", "heat span", "since when", views=("run",), inside=True),
    Key("l", "lines filter {rank}", "its log", views=("run",), inside=True),
    Key(
        "e", "export {run} --format csv -o {run}.csv", "export", True, ("run", "runs"), inside=True
    ),
    Key("slash", "find ", "find", True, ("logs",), inside=True),
    Key("n", "lines next", "next", views=("logs",), inside=True),
    Key("N", "lines previous", "before", views=("logs",), inside=True),
    Key("f", "filter ", "filter", True, ("logs",), inside=True),
    Key("x", "lines first-error", "first error", views=("logs",), inside=True),
    Key("e", "lines error", "error", views=("logs",), inside=True),
    Key("E", "lines error-before", "error before", views=("logs",), inside=True),
    Key("o", "lines fold", "fold", views=("logs",), inside=True),
    Key("d", "lines digits", "digits", views=("logs",), inside=True),
    Key("w", "lines wrap", "wrap", views=("logs",), inside=True),
    Key("t", "lines times", "times", views=("logs",), inside=True),
    Key("a", "lines at ", "at a time", True, ("logs",), inside=True),
    Key("y", "lines copy", "copy", views=("logs",), inside=True),
    Key("c", "check --hosts {host}", "check this host", views=("cluster",), inside=True),
    Key("enter", "open", "open", views=("check",), inside=True),
    Key("r", "repeat {check}", "this again", views=("check",), inside=True),
    Key("m", "pairs", "pairs", views=("check",), inside=True),
    Key("i", "interfaces", "interfaces", views=("check",), inside=True),
    Key("x", "cancel", "cancel", views=("check",), inside=True),
    Key("ctrl+q", "quit", "quit"),
)

SCREEN_VERBS = {
    "view": "show one of: cluster check run logs runs transcript help; or a run: view RUN",
    "sort": "ranks by: worst rank ms data step; 'sort' alone takes the next; on the cluster by any field: sort util, sort temp up",
    "group": "GPUs on the cluster screen by a field: host name user throttle rank; none ends it",
    "watch": "say when a condition comes true and when it ends: watch state=failed; alone lists",
    "unwatch": "end a watch: its number, or all",
    "heat": "ranks and moments as colours, and back; heat QUANTITY (step data rate use or a metric), heat span: minutes or the whole run",
    "plots": "curves, or the error of a failed run; plots next: other curves; plots loss GPU: these first",
    "open": "everything about the finding, the check or the pair of hosts under the cursor",
    "repeat": "one check of the last one again: repeat CHECK",
    "pairs": "the pairs of hosts as a matrix, and back: arrows move, N goes to the next in trouble",
    "interfaces": "which interface each engine takes on each host, and back",
    "cancel": "end the check that goes on",
    "filter": "on cluster and run only what matches: filter util<10 and host~gpu0; in the logs only lines: 0-3,8 host:gpu* out err errors since:10m /regex/ -without word; alone shows all",
    "find": "search the lines of the run: words, or a regular expression; n and N go on",
    "lines": "in the logs: error error-before first-error next previous end fold digits wrap times copy, at TIME",
    "clear": "empty the transcript",
    "screenshot": "save the screen as an SVG file",
    "theme": "dark, light, ansi-dark (the terminal's own colours) or any theme of Textual's",
    "quit": "leave; a run goes on without the console",
}
"""Verbs that are about the screen alone and exist only at the prompt."""

ALIASES = {"exit": "quit", "q": "quit", ":q": "quit", "?": "help"}
"""What fingers type by themselves."""

SORTS = ("worst", "rank", "ms", "data", "step")
"""Orders of the ranks: troubled ones and then the slowest first, the others by number; by number; by step time, share of
the step spent waiting for data (both largest first); by step (least far first)."""
