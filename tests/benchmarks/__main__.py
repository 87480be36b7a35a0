"""``python -m benchmarks [--quick] [--only NAME,...]``: see ``report``."""

import sys

from benchmarks.report import main

sys.exit(main())
