"""``python -m distconsole.checks`` prints the tables of docs/reference/checks.md."""

from __future__ import annotations

import sys

from distconsole.checks.engine.catalogue import catalogue_tables

if __name__ == "__main__":
    sys.stdout.write(catalogue_tables())
