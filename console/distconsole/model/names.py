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

_NO_HOST = re.compile(r"""-|.*[\x00-\x20\x7f'`"$\\;&<>|(){},]""", re.DOTALL)
_NO_USER = re.compile(r"""-|.*([\x00-\x1f\x7f'`";&<>|(){}]|\s-|\\\Z)""", re.DOTALL)


def may_be_host(text: str) -> bool:
    """Whether a host's name or address can stand in a shell's command, as OpenSSH 9.6 judges it."""
    return bool(text) and _NO_HOST.match(text) is None


def may_be_user(text: str) -> bool:
    """Whether a user's name can stand in a shell's command, as OpenSSH 9.6 judges it."""
    return bool(text) and _NO_USER.match(text) is None
