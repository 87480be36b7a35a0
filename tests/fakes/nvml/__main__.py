"""``python -m fakes.nvml``: build the stand-in NVML and print its folder; it starts nothing."""

from __future__ import annotations

import sys

from fakes.nvml import main

sys.exit(main())
