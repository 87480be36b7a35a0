"""Hosts to test on: namespaces with real OpenSSH, or real sshd on loopback where there is no root."""

from testbed.bed import Testbed, missing
from testbed.host import Host
from testbed.loopback import LoopbackBed, LoopbackHost, missing_on_loopback
from testbed.machine import HOME, Process

__all__ = [
    "HOME",
    "Host",
    "LoopbackBed",
    "LoopbackHost",
    "Process",
    "Testbed",
    "missing",
    "missing_on_loopback",
]
