"""A run that the first version recorded: its store, and its two nodes' folders with their journals.

It is the demo on two embedded nodes, made from commit b6ac660. The secret is blanked.
"""

import tarfile
from pathlib import Path

RUN = "digits-1122-34cacf"
ENTRIES = {"node1": 45, "node2": 29}
ARCHIVE = Path(__file__).parents[1] / "cases" / "first_version.tar.gz"


def unpack_first_version(folder: Path) -> Path:
    """Return a folder with ``RUN.db`` and the run's folders ``node1`` and ``node2``."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder
