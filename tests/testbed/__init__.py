"""Hosts to test on: namespaces with real OpenSSH, which need root; embedded nodes do without."""

from testbed.bed import Testbed, missing
from testbed.host import Host
from testbed.machine import HOME, Process

__all__ = ["HOME", "Host", "Process", "Testbed", "missing"]
