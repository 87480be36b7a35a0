"""What ranks print into pipes reaches their logs, or is counted."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from distconsole_agent.supervisor.rank_output import RankOutput
from fakes.shims import wait_until

ROOM = 1 << 30


def test_what_was_only_held_back_by_a_passing_error_is_in_the_log_without_a_gap(
    tmp_path: Path,
) -> None:
    (tmp_path / "logs").mkdir()
    output = RankOutput(str(tmp_path), ROOM)
    pipe = output.pipe("rank-0.out")
    with Path(pipe).open("wb", buffering=0) as rank:
        with _no_file_grows():
            rank.write(b"first\n")
            wait_until("a drop", lambda: output.dropped())
        rank.write(b"second\n")
        output.close()
    assert (tmp_path / "logs" / "rank-0.out").read_bytes() == b"first\nsecond\n"
    assert output.dropped() == []


@contextmanager
def _no_file_grows() -> Iterator[None]:
    """Let every write to a file fail (EFBIG), as a disk that has gone would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
