#!/usr/bin/env bash
# The documented split of a stream into take(n) for validation and skip(n) for training overlaps as soon as the training
# part is split by node (or read by several DataLoader workers): ranks train on examples of the validation set.
#
# Package:  datasets 5.2.0.
# Expected: take: "only the first n elements"; skip: "skips the first n elements"
#           (https://huggingface.co/docs/datasets/v5.2.0/en/package_reference/main_classes, IterableDataset); the guide
#           makes a validation and a training set so (https://huggingface.co/docs/datasets/stream, "Split dataset").
#           split_dataset_by_node only says which node gets which of these examples.
# Seen:     where the number of shards is a multiple of the nodes, n is divided among the shards: each node skips some
#           examples of its own shards. With 2 shards of 4, take(5) is [0, 1, 2, 3, 10] on one process, while the two
#           nodes of skip(5) train on [3] and [12, 13]: 3 is in the validation set, 11 is in neither. With 3 shards,
#           which 2 nodes do not divide, the same code is right.
# Upstream: no issue found on take or skip before the split (huggingface/datasets#8568, repaired, is on skip after it).
#           2026-11-28.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check datasets==5.2.0

cat >"$folder/split.py" <<'EOF'
import sys
from importlib.metadata import version
from datasets import IterableDataset
from datasets.distributed import split_dataset_by_node

NODES = 2


def examples(shards):
    for shard in shards:
        for i in range(4):
            yield {"v": 10 * shard + i}


def read(dataset):
    return [row["v"] for row in dataset]


def by_node(dataset):
    return [read(split_dataset_by_node(dataset, rank, NODES)) for rank in range(NODES)]


print("package  datasets", version("datasets"))
seen = {}
for shards in (2, 3):
    stream = IterableDataset.from_generator(examples, gen_kwargs={"shards": list(range(shards))})
    validation, training = read(stream.take(5)), read(stream.skip(5))
    nodes = by_node(stream.skip(5))
    both = sorted(set(validation) & {v for node in nodes for v in node})
    lost = sorted(set(training) - {v for node in nodes for v in node})
    seen[shards] = (both, lost)
    print(f"{shards} shards of 4 examples, {NODES} nodes: take(5) on one process {validation}")
    print(f"  skip(5) by node        expected {training} in all, seen {nodes}")
    print(f"  in both sets           expected [], seen {both}")
    print(f"  in neither             expected [], seen {lost}")
sys.exit(not (seen == {2: ([3], [11]), 3: ([], [])}))
EOF
HF_HOME=$folder/home HF_HUB_OFFLINE=1 "$folder/venv/bin/python" "$folder/split.py"
