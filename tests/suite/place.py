"""A launcher on hosts of a testbed, as the tests of every launcher use it. It asserts only that what it waits for comes."""

from dataclasses import dataclass
from pathlib import Path

from suite.console import Console
from suite.starters import NEVER, Starter
from testbed import Host, Testbed


@dataclass(frozen=True, slots=True)
class Place:
    """A launcher and the hosts of its rows, which stay up through all of them."""

    starter: Starter
    bed: Testbed

    @property
    def hosts(self) -> list[Host]:
        return self.bed.hosts[:2]

    def run(
        self, folder: Path, what: str, steps: int = NEVER, bare: bool = False, *how: str
    ) -> Console:
        """Start the launcher's script as ``how`` says; bare ranks stand for those whose own library does not matter."""
        starter = self.starter.bare() if bare else self.starter
        words = starter.asked(folder, self.bed.host_names[-1], what, steps)
        return Console(self.bed, folder, words[0], *how, *words[1:], hosts=self.starter.hosts)

    def trains(self, console: Console) -> None:
        """Wait until every rank is in its fourth step, and its two children are there."""
        for rank in range(self.starter.world):
            console.see(event="log", line=f"{rank}: 3")
