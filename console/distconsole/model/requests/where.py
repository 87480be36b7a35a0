"""Which hosts a request is about, as they are given. It resolves none."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Where:
    """Which hosts, as given on the command line; ``config.hosts`` turns it into a ``Cluster``."""

    hosts: str | None = None
    hostfile: str | None = None
    cluster: str | None = None
    ssh_config: str | None = None
    python: str | None = None
    setup: str | None = None

    @property
    def names_hosts(self) -> bool:
        """Whether it says which hosts, and not only how to reach them."""
        return any(name is not None for name in (self.hosts, self.hostfile, self.cluster))

    def over(self, kept: Where) -> Where:
        """Return ``kept`` with what is said here put over it; hosts named here replace its hosts."""
        names = self if self.names_hosts else kept
        return Where(
            hosts=names.hosts,
            hostfile=names.hostfile,
            cluster=names.cluster,
            ssh_config=self.ssh_config or kept.ssh_config,
            python=self.python or kept.python,
            setup=self.setup or kept.setup,
        )

    def beyond(self, kept: Where) -> Where:
        """Return the least that has to be said over ``kept`` to mean this."""
        names = ("hosts", "hostfile", "cluster")
        same = all(getattr(self, name) == getattr(kept, name) for name in names)
        unsaid = {name: None for name in names if same}
        for name in ("ssh_config", "python", "setup"):
            if getattr(self, name) == getattr(kept, name):
                unsaid[name] = None
        return replace(self, **unsaid)
