"""A journal on a real ext4 that is cut off in the middle of its writes, as a power cut does it.

``EXT4_IOC_SHUTDOWN`` without a flush of the filesystem's log: what the disk had by then is all that
it has when it is mounted again.
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from distconsole_agent.journal.journal import Journal
from distconsole_agent.journal.reader import Reader

SHUTDOWN, NO_LOG_FLUSH = 0x8004587D, (2).to_bytes(4, sys.byteorder)

WRITER = """
import sys
from distconsole_agent import journal as module
from distconsole_agent.journal.journal import Journal

module.SEGMENT_BYTES = 100_000
journal = Journal(sys.argv[1])
assert journal.open_writer()
while True:
    for _ in range(20):
        note = {"t": 1.0, "kind": "note", "summary": "x" * 200}
        journal.append([note] * 5, {"shim": {"offset": journal.last_seq + 5}})
        print("told", journal.last_seq, flush=True)
    journal.append([{"t": 1.0, "kind": "failure"}], {"shim": {"offset": journal.last_seq + 1}})
    if journal.sync_with([], 60):
        print("synced", journal.last_seq, flush=True)
"""


def mount(image: Path, at: Path) -> bool:
    done = subprocess.run(["mount", "-o", "loop", image, at], check=False, capture_output=True)
    return done.returncode == 0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """An image with an ext4 and where it is mounted."""
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        pytest.skip("needs root and mkfs.ext4")
    image, at = tmp_path / "disk", tmp_path / "mounted"
    with image.open("wb") as file:
        file.truncate(64 * 1024 * 1024)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    at.mkdir()
    if not mount(image, at):
        pytest.skip("needs loop devices")
    yield image, at
    subprocess.run(["umount", "--lazy", at], check=False)


def write_until_cut_off(at: Path, synced_times: int, then_told: int) -> int:
    """Return the last entry that was synced when the disk was cut off."""
    synced = 0
    command = [sys.executable, "-c", WRITER, str(at / "journal")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as writer:
        assert writer.stdout is not None
        for line in writer.stdout:
            word, number = line.split()
            if word == "synced":
                synced, synced_times = int(number), synced_times - 1
            then_told -= synced_times <= 0
            if then_told <= 0:
                break
        fd = os.open(at, os.O_RDONLY)
        fcntl.ioctl(fd, SHUTDOWN, NO_LOG_FLUSH)
        os.close(fd)
        writer.kill()
        writer.stdout.read()
    return synced


@pytest.mark.parametrize("then_told", [1, 7, 15])
def test_a_journal_on_a_disk_that_is_cut_off_has_all_that_was_synced(
    disk: tuple[Path, Path], then_told: int
) -> None:
    image, at = disk
    (at / "journal").mkdir()
    os.sync()
    before = 0
    for synced_times in (1, 3, 2):
        synced = write_until_cut_off(at, synced_times, then_told)
        subprocess.run(["umount", at], check=True)
        # A mount namespace that was made meanwhile has this mount too, and the image would stay cut off.
        image = shutil.copyfile(image, image.with_name(f"disk-{synced}"))
        assert mount(image, at)
        found = Journal(str(at / "journal"))
        assert found.open_writer()
        reader = Reader(found.folder, 0)
        entries = [json.loads(line)["seq"] for line in reader.read_all()]
        reader.close()
        found.close()
        assert before < synced <= found.last_seq
        assert found.mark == {"shim": {"offset": found.last_seq}}
        assert entries == list(range(1, found.last_seq + 1))
        before = found.last_seq
