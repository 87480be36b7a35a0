"""``run --slurm --dry-run``: what would be submitted. It asks no host."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from distconsole.launch.job import new_run_id
from distconsole.launch.show import plan_event
from distconsole.launch.slurm.dry_run import expect, submission_text
from distconsole.launch.slurm.submit import read_options, submit_command, words_of
from distconsole.model.events import Event, TextMade
from distconsole.model.requests import Run
from distconsole.operations.launch.planner import LaunchHosts, plan_launch, read_launch
from distconsole.operations.launch.refusing import refuse_our_flags
from distconsole.operations.sessions import narrate
from distconsole.operations.slurm.job import named_hosts, refuse_before_submitting


def show_submission(request: Run, exclude: Sequence[str]) -> Iterator[Event]:
    """Yield the plan, with names that stand for what only Slurm knows, and its text.

    Raises:
        ConsoleError: as submitting it would, as far as that can be seen from here.
    """
    refuse_before_submitting(request)
    refuse_our_flags(request)
    named = named_hosts(request.where)
    run = new_run_id(request.script, request.name)
    submit = submit_command(request.slurm or "", run, list(named), exclude)
    asked = read_options(words_of(request.slurm or ""))
    expected = expect(request, asked, named)
    allocation = replace(expected.allocation, run=run)
    hosts = LaunchHosts(expected.cluster, expected.facts, allocation)
    plan = plan_launch(read_launch(request), hosts)
    yield plan_event(plan, time.time())
    yield from narrate(plan.notes)
    if not request.json:
        yield TextMade(text=submission_text(plan, submit, asked))
