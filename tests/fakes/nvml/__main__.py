"""``python -m fakes.nvml``: build the stand-in NVML and print its folder; it starts nothing."""

import sys

from fakes.nvml import main

sys.exit(main())
