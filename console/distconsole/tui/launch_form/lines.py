"""Lines that launch on the console's own hosts: what they would do, and how launches of before read here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from distconsole.config.hosts import resolve_cluster
from distconsole.config.load import load_config
from distconsole.errors import ConsoleError
from distconsole.grammar.drafts import draft_of
from distconsole.model import requests as ask
from distconsole.model.cluster import Host
from distconsole.model.events import Event
from distconsole.operations import Control
from distconsole.operations.sessions import lasting
from distconsole.tui.launch_form.plan_preview import PlanPreview
from distconsole.tui.session import ConsoleSession


class LaunchLines:
    """What a form asks of a session."""

    def __init__(self, session: ConsoleSession) -> None:
        self._session = session
        self._hosts: tuple[Host, ...] | None = None

    def look(self, line: str, launchers: bool) -> PlanPreview:
        """Return a look at what ``line`` would launch, to be started; it ends with the session."""
        session = self._session

        def foresee(request: ask.Foresee, control: Control) -> Iterator[Event]:
            run = replace(request.run, where=request.run.where.over(session.where))
            return session.answer(replace(request, run=run), control)

        began = session.clocks.monotonic()
        look = PlanPreview(line, session.request, foresee, launchers=launchers, began=began)
        session.looks = [each for each in session.looks if each.goes_on] + [look]
        return look

    @property
    def hosts(self) -> tuple[Host, ...]:
        """The console's own hosts, without a port that the configuration gives to whoever names them."""
        own = self._session.own
        if own is None:
            return ()
        if self._hosts is None:
            self._hosts = tuple(
                replace(host, port=None)
                if host.port == own.config.settings(host.name).port
                else host
                for host in own.cluster.hosts
            )
        return self._hosts

    def beside_hosts(self, text: str) -> dict[str, str]:
        """Return the options that have hosts named by ``text`` reached as the console's own are."""
        reached = self._session.own
        if reached is None:
            return {}
        own, where = reached.cluster, ask.Where(hosts=text).over(self._session.where)
        try:
            named = resolve_cluster(where, reached.config, os.environ)
        except ConsoleError:
            return {}
        pairs = [(host, own.host(host.name) or host) for host in named.hosts]
        found: dict[str, set[str | None]] = {
            "python": {known.python for host, known in pairs if known.python != host.python},
            "setup": {known.setup for host, known in pairs if known.setup != host.setup},
            "ssh_config": {own.ssh_config} - {named.ssh_config},
        }
        alone = {name: next(iter(values)) for name, values in found.items() if len(values) == 1}
        return {name: value for name, value in alone.items() if value}

    def shortened(self, request: ask.Run) -> ask.Run:
        """Return ``request``, which was kept, as it reads here: hosts and folder of ours go unsaid."""
        own = self._session.own
        if own is not None:
            ours = lasting(self._session.where, own.cluster)
            request = replace(request, where=request.where.beyond(ours))
        if request.workdir == str(Path.cwd()):
            request = replace(request, workdir=None)
        return replace(request, json=False, dry_run=False)

    def line_of(self, request: ask.Run, *, outside: bool = False) -> str:
        """Return the line that asks for ``request`` at the prompt, or in a shell if ``outside``.

        Raises:
            ConsoleError: if the configuration cannot be read.
        """
        if outside:
            request = replace(request, where=request.where.over(self._session.where))
        return draft_of(request, load_config().verbs).line()
