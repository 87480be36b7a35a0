"""What hosts that were away when a run ended tell of it once they are back."""

from __future__ import annotations

import time

import msgspec

from distconsole.model.names import HostName
from distconsole.model.run_events import LinkChanged
from distconsole.runs.following.feed import JournalFeed, OpenStream
from distconsole.runs.following.follow import known_places
from distconsole.runs.store.keeping import Keeping
from distconsole.runs.store.planned import stored_end
from distconsole.runs.store.run_file import RunFile, RunRecord
from distconsole.runs.store.store import RunStore
from distconsole.runs.summary import keep_whole, stored_events
from distconsole.runs.timeline import RunTimeline

SILENT_SECONDS = 5.0
"""So long a host that says nothing is awaited, once it has been reached or not."""
KEPT_SECONDS = 14 * 86400.0
"""Hosts forget a run so long after its end (``KEEP_RUN_SECONDS`` of the agent)."""


def hosts_to_ask(record: RunRecord, store: RunStore) -> list[HostName]:
    """Return the hosts of a run that is over that have not told its end and may still know it."""
    end = stored_end(record)
    if end is None or time.time() - end.t > KEPT_SECONDS:
        return []
    with store.open(record.run) as run_file:
        return run_file.without_end(record.hosts)


def fetch_late(
    store: RunStore, record: RunRecord, hosts: list[HostName], open_stream: OpenStream
) -> dict[HostName, str]:
    """Fetch what ``hosts`` have to tell of a run; return why those that could not be asked did not.

    Raises:
        ConsoleError: if the disk refuses.
    """
    away: dict[HostName, str] = {}
    with store.create(record) as run_file:
        places = known_places(run_file, hosts)
        with Keeping(run_file.path) as keeping:
            feed = JournalFeed(record.run, open_stream, places, keeping.keep, keeping.know_again)
            try:
                while len(away) < len(hosts) and not feed.exhausted and not keeping.failure:
                    news = feed.next(SILENT_SECONDS)
                    if isinstance(news, LinkChanged) and not news.connected:
                        away[HostName(news.host)] = news.reason
                    elif isinstance(news, LinkChanged):
                        away.pop(HostName(news.host), None)
                    elif news is None:
                        break  # what there is has come: the run may go on there
            finally:
                feed.close()
        _keep_anew(run_file)
    return away


def _keep_anew(run_file: RunFile) -> None:
    """Keep the summary of a run of which more is known, and its end if all hosts have told theirs."""
    timeline = RunTimeline()
    for event in stored_events(run_file):
        timeline.apply(event)
    if timeline.end is not None:
        run_file.write_end(msgspec.json.encode(timeline.end))
    keep_whole(run_file, timeline)
