"""The table of fields of conditions on runs in a list."""

from __future__ import annotations

import time
from collections.abc import Callable

from distconsole.expression.fields import Field, Fields, ValueKind
from distconsole.model.run_summary import RunSummary

TEXT = ValueKind.TEXT


def summary_fields(now: Callable[[], float] = time.time) -> Fields[RunSummary]:
    """Return the fields of runs; their age counts from ``now`` (UNIX seconds)."""
    return Fields(
        "runs",
        (
            Field("run", lambda each: each.run, "its id", TEXT),
            Field("name", lambda each: each.name, "its name", TEXT),
            Field(
                "state",
                lambda each: each.state,
                "running, unknown, succeeded, failed, stopped, or unreadable: no host can read its record",
                TEXT,
            ),
            Field("age", lambda each: max(0.0, now() - each.started), "since its start", unit="s"),
            Field("seconds", lambda each: each.seconds, "duration", unit="s"),
            Field("from", lambda each: each.origin or None, "here, attached or elsewhere", TEXT),
            Field("script", lambda each: each.script, "its script or module", TEXT),
            Field("launcher", lambda each: each.launcher, "its launcher", TEXT),
            Field("ranks", lambda each: each.world_size, "number of ranks"),
            Field("host", lambda each: each.hosts, "its hosts", TEXT),
            Field("hosts", lambda each: len(each.hosts), "number of hosts"),
            Field("exit", lambda each: each.exit_code, "its exit code"),
            Field("steps", lambda each: each.steps, "steps that it has done"),
            Field("samples_s", lambda each: each.samples_s, "mean samples a second, all ranks"),
            Field(
                "spread",
                lambda each: each.step_ms_spread,
                "slowest rank's mean step over the fastest's",
            ),
            Field(
                "spread.own",
                lambda each: each.own_ms_spread,
                "the same of their own times (steps less waits for other ranks)",
            ),
            Field("restarts", lambda each: each.restarts, "restarts of its ranks"),
            Field("loss", lambda each: each.metrics.get("loss"), "the same as metric.loss"),
            Field("loss.best", lambda each: each.best.get("loss"), "its lowest value"),
            Field(
                "error",
                lambda each: None if each.first_failure is None else each.first_failure.error,
                "error of the rank that failed first",
                TEXT,
            ),
        ),
        "metric",
        lambda each, name: each.metrics.get(name),
    )
