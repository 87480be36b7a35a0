"""Identifiers, each a type of its own, and what each may look like."""

from __future__ import annotations

import re
from typing import NewType

HostName = NewType("HostName", str)
"""A host as the user wrote it (an ssh_config alias, a name or an address); unique in a cluster."""

RunId = NewType("RunId", str)
"""Identifies a run on every machine: lower-case letters, digits and dashes, at most 40."""

Rank = NewType("Rank", int)
"""A process of the job, counted from 0 over all nodes."""

RUN_ID_PATTERN = re.compile(r"^[a-z0-9][a-z0-9-]{2,39}$")
