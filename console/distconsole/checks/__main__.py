"""``python -m distconsole.checks`` prints docs/checks.md."""

from __future__ import annotations

import sys

from distconsole.checks.engine.reference import reference_page

if __name__ == "__main__":
    sys.stdout.write(reference_page())
