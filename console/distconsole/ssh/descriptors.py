"""How many files, sockets and pipes this program may have open: by default often 1,024, too few for hundreds of hosts."""

from __future__ import annotations

import resource
from contextlib import suppress

OWN, EACH_HOST = 256, 8
"""What the program has open for itself, and for a host: sockets and pipes of SSH, and those of a login."""


def allow_descriptors(hosts: int) -> None:
    """Have as many allowed as ``hosts`` need, as far as the hard limit goes; few hosts need no more than there is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OWN + EACH_HOST * hosts
    if resource.RLIM_INFINITY not in (soft, hard):
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):  # macOS has limits beside the hard one
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
