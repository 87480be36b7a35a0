"""Claims about lists whose older part lies on the disk."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from distconsole.runs.logs.spill import BLOCK, SpilledList

LONG_SECONDS = 20.0


def test_who_reads_does_not_wait_for_a_block_on_its_way_to_the_disk(tmp_path: Path) -> None:
    writing, go_on = threading.Event(), threading.Event()

    def encode(items: list[int]) -> bytes:
        writing.set()
        assert go_on.wait(LONG_SECONDS)
        return json.dumps(items).encode()

    numbers: SpilledList[int] = SpilledList(
        encode, json.loads, max_weight=2 * BLOCK - 1, folder=tmp_path
    )
    appending = threading.Thread(target=lambda: [numbers.append(n) for n in range(2 * BLOCK)])
    read: list[int] = []

    def look() -> None:
        read.extend([numbers.get(0), numbers.get(2 * BLOCK - 1), len(numbers)])
        read.extend(numbers.slice(0, 3))

    appending.start()
    assert writing.wait(LONG_SECONDS)
    looking = threading.Thread(target=look)
    looking.start()
    looking.join(LONG_SECONDS / 10)
    waited = looking.is_alive()
    go_on.set()
    looking.join(LONG_SECONDS)
    appending.join(LONG_SECONDS)
    assert not waited
    assert read == [0, 2 * BLOCK - 1, 2 * BLOCK, 0, 1, 2]
    assert [numbers.get(n) for n in range(2 * BLOCK)] == list(range(2 * BLOCK))
    numbers.close()
