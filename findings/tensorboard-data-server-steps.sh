#!/usr/bin/env bash
# TensorBoard's default loader (the data server) throws away points whose step is not above the last one, and
# --purge_orphaned_data=false, which is there "to debug data disappearance", changes nothing.
#
# Package:  tensorboard 2.21.0 with tensorboard-data-server 0.7.2.
# Expected: --load_fast: "Use alternate mechanism to load data. Typically 100x faster or more"; of other data there is no
#           word (`tensorboard --help`). In files of version brain.Event:2 a restart is told by a SessionLog with status
#           START (event_accumulator.py: "If file_version is >= 2, purge by SessionLog.START"); there is none here.
# Seen:     steps 0 1 2 3 4 and then 2 3 (a run that went on from a checkpoint, or a curve by epoch) become 0 1 2 3:
#           step 4 is gone; four points at one step become one. With --load_fast=false, and for EventAccumulator, which
#           tbparse and most scripts use, all seven and all four are there. No warning in either.
# Upstream: no issue found; tensorflow/tensorboard#4784 collects feedback on the data server. 2026-11-28.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check tensorboard==2.21.0 tensorboard-data-server==0.7.2 setuptools==80.9.0

cat >"$folder/read.py" <<'EOF'
import json, logging, subprocess, sys, time, urllib.request
from importlib.metadata import version
from pathlib import Path

from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.record_writer import RecordWriter

folder = Path(sys.argv[1])
RUNS = {"back": [0, 1, 2, 3, 4, 2, 3], "same": [3, 3, 3, 3]}
for run, steps in RUNS.items():
    (folder / "logs" / run).mkdir(parents=True)
    with open(folder / "logs" / run / "events.out.tfevents.1.host", "wb") as file:
        records = RecordWriter(file)
        records.write(event_pb2.Event(wall_time=1, file_version="brain.Event:2").SerializeToString())
        for at, step in enumerate(steps):
            value = summary_pb2.Summary.Value(tag="loss", simple_value=at)
            summary = summary_pb2.Summary(value=[value])
            records.write(event_pb2.Event(wall_time=2 + at, step=step, summary=summary).SerializeToString())


def read(*options):
    """Steps that a browser gets, by run."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", folder / "logs", "--port=0", "--host=127.0.0.1"]
    server = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True)
    try:
        url = next(word for line in server.stderr for word in line.split() if word.startswith("http://127"))
        for _ in range(120):
            try:
                got = {}
                for run in RUNS:
                    with urllib.request.urlopen(f"{url}data/plugin/scalars/scalars?run={run}&tag=loss") as answer:
                        got[run] = [step for _, step, _ in json.load(answer)]
                return got
            except urllib.error.HTTPError:
                time.sleep(0.5)  # not loaded yet
    finally:
        server.terminate()
        server.wait()


print("package  tensorboard", version("tensorboard"), "tensorboard-data-server", version("tensorboard-data-server"))
slow = read("--load_fast=false")
fast = read("--load_fast=true")
kept = read("--load_fast=true", "--purge_orphaned_data=false")
for run in RUNS:
    print(f"{run}: written {RUNS[run]}, --load_fast=false {slow[run]}")
    print(f"  --load_fast=true                              expected the same, seen {fast[run]}")
    print(f"  --load_fast=true --purge_orphaned_data=false  expected the same, seen {kept[run]}")
sys.exit(not (slow == RUNS and fast == kept == {"back": [0, 1, 2, 3], "same": [3]}))
EOF
"$folder/venv/bin/python" "$folder/read.py" "$folder"
