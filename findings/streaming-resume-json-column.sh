#!/usr/bin/env bash
# StreamingDataLoader resumes at the wrong sample where the first column is a list or a dictionary, say a bounding box:
# samples are left out or trained on again.
#
# Package:  mosaicml-streaming 0.10.0 with torch 2.13.0; one process shows it, more ranks multiply it.
# Expected: "StreamingDataLoader … works exactly like a normal PyTorch DataLoader", "call the state_dict method … and save
#           it along with your checkpoint. Then, when resuming, call load_state_dict" for "fast, deterministic mid-epoch
#           resumption" (https://docs.mosaicml.com/projects/streaming/en/latest/distributed_training/fast_resumption.html).
#           The encoding "json" takes any JSON value.
# Seen:     the samples of a batch are counted as the length of the batch's first value, and MDS sorts columns by name.
#           torch's default collate_fn turns lists of 4 into 4 tensors and dictionaries into one dictionary: a batch of 2
#           counts as 4 or, with one key, as 1. After 3 batches the resumed run leaves out 6 samples or repeats 3. No
#           error, no warning. The same column behind one of numbers ("z_box"), or as an ndarray, is counted right.
# Upstream: no issue found in mosaicml/streaming (#437 and #880 are on a resume that starts at 0). 2026-11-30.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6 transformers==4.57.6 \
    brotli==1.2.1 python-snappy==0.7.3 xxhash==3.8.2 zstd==1.5.7.2 pillow==13.0.0
# Of its other requirements nothing is used here: clients of clouds, and torchvision for the ready-made datasets.
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps mosaicml-streaming==0.10.0
package=$("$folder/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/streaming
sed -i '/^import streaming\.\(multimodal\|text\|vision\)/d' "$package/__init__.py"

cat >"$folder/resume.py" <<'EOF'
import sys
from importlib.metadata import version

from streaming import MDSWriter, StreamingDataLoader, StreamingDataset

CASES = {
    "id alone": (None, None, None),
    "z_box, a list of 4": ("z_box", "json", lambda i: [i, i, i, i]),
    "box, a list of 4": ("box", "json", lambda i: [i, i, i, i]),
    "about, a dictionary": ("about", "json", lambda i: {"page": i}),
}


def loader(folder):
    return StreamingDataLoader(StreamingDataset(local=folder, batch_size=2, shuffle=False), batch_size=2)


def after_resume(folder, name, encoding, value):
    with MDSWriter(out=folder, columns={"id": "int"} | ({name: encoding} if name else {})) as out:
        for i in range(16):
            out.write({"id": i} | ({name: value(i)} if name else {}))
    first = loader(folder)
    batches = iter(first)
    trained = [i for _ in range(3) for i in next(batches)["id"].tolist()]
    state = first.state_dict()
    del batches, first
    resumed = loader(folder)
    resumed.load_state_dict(state)
    return trained, [i for batch in resumed for i in batch["id"].tolist()]


if __name__ == "__main__":
    print("package  mosaicml-streaming", version("mosaicml-streaming"))
    print("input    16 samples in batches of 2; state_dict() after 3 batches, load_state_dict() in a new loader")
    begins = {}
    for number, (case, column) in enumerate(CASES.items()):
        trained, rest = after_resume(f"{sys.argv[1]}/data{number}", *column)
        begins[case] = rest[0]
        print(f"{case:20} trained {trained}; expected to go on with 6, seen {rest}")
    sys.exit(list(begins.values()) != [6, 6, 12, 3])
EOF
TMPDIR="$folder" "$folder/venv/bin/python" -W ignore "$folder/resume.py" "$folder"
