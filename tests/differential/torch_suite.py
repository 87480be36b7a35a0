"""PyTorch's own tests of torch.distributed, as its wheel ships them: two ranks, Gloo, a fork for each test."""

from __future__ import annotations

import os
import tempfile

os.environ.update(BACKEND="gloo", WORLD_SIZE="2", TEMP_DIR=tempfile.mkdtemp())

import torch

# They read their variables as they are imported.
from torch.testing._internal.distributed import distributed_test


class TestTwoRanks(  # type: ignore[misc]
    distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase
):
    def setUp(self) -> None:
        super().setUp()
        # Those that torch spawns instead import this file for each test: the same, at ten times the time.
        self._start_processes(torch.multiprocessing.get_context("fork").Process)
