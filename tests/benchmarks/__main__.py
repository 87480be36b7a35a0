"""``python -m benchmarks [--quick] [--only NAME,...]``: see ``report``; ``python -m benchmarks NAME --rounds 3``: one
of them, with its options. ``be NAME WORD...`` is a process that a benchmark starts: see ``alone.program``.
"""

import sys
from importlib import import_module

if sys.argv[1:2] == ["be"]:
    import_module(f"benchmarks.{sys.argv[2]}").be(*sys.argv[3:])
else:
    from benchmarks.report import main

    sys.exit(main())
