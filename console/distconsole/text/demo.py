"""The demo in words: its parts, and what can be done after it."""

from __future__ import annotations

from distconsole.model.events import DemoEnded, DemoStep

WITH_A_RUN = (
    ("distconsole replay last", "see the run again, at any moment"),
    ("distconsole report last -o demo.html", "the run as one page for a browser"),
    ("distconsole check --hosts HOST1,HOST2", "check your own hosts"),
)
WITHOUT_A_RUN = (
    ("distconsole demo", "the whole demo"),
    ("distconsole check --hosts HOST1,HOST2", "check your own hosts"),
    ("distconsole run train.py", "run your script, on this machine"),
)


def demo_lines(event: DemoStep | DemoEnded) -> list[str]:
    """Return what to look at in this part; at the end what is left, and what to try next."""
    if isinstance(event, DemoStep):
        return [f"{event.number} of {event.of} \N{MIDDLE DOT} {event.title}: look at {event.look}"]
    kept = f"; the run {event.run} is kept" if event.run else ""
    tries = WITH_A_RUN if event.run else WITHOUT_A_RUN
    width = max(len(command) for command, _ in tries)
    torch = "distconsole demo --torch trains a real network"
    if event.torch_lacks:
        torch += f"; it needs {', '.join(event.torch_lacks)}: pip install 'distconsole[training]'"
    return [
        f"the demo is over: its nodes, their processes and their folder are gone{kept}",
        "try next:",
        *(f"    {command:<{width}}  {what}" for command, what in tries),
        torch,
    ]
