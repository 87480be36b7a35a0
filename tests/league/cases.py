"""The cases of the league table, from ``cases.yaml`` and a seed: what runs, and who is to blame."""

import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
SCRIPTS = ("faults.py", "job.py", "slow_import.py")
NODES = 2
QUICK_EVERY = 12
CLASSES = ("hang", "slow", "wrong", "dying", "healthy", "asked")


@dataclass(frozen=True)
class Case:
    """One training.

    Attributes:
        name: Of the case, the same for every seed.
        odd: The true culprits; empty of a healthy one, and where no rank alone is wrong.
        at_step: The step of the fault.
        kinds: Words of which the verdict must be one.
        mark: ``file:line`` where the culprit stands; empty where it has no line.
        waits: What the others wait in, of a death what is said of it: one of these words; empty where that is not asked.
        held_out: Whether nobody looks at it who mends the judge.
    """

    name: str
    klass: str
    fault: str
    place: str
    engine: str
    launcher: str
    ranks: int
    odd: tuple[int, ...] = ()
    at_step: int = 0
    slow_ms: float = 0.0
    kinds: tuple[str, ...] = ()
    mark: str = ""
    waits: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    held_out: bool = False
    hosts: tuple[str, ...] = field(default=())

    @property
    def arguments(self) -> tuple[str, ...]:
        """What ``job.py`` is told."""
        words = ["--engine", self.engine, "--place", self.place, "--at", str(self.at_step)]
        words += ["--odd", ",".join(map(str, self.odd)), "--slow-ms", f"{self.slow_ms:g}"]
        words += ["--healthy" if self.klass == "healthy" else "--fault", self.fault]
        if self.launcher == "spawn":
            words += ["--spawn", str(self.ranks // NODES)]
        return (*words, *self.extra)


def make_cases(seed: int) -> list[Case]:
    """Return all cases in the order of the file; equal seeds give equal cases."""
    rows: list[dict[str, Any]] = yaml.load((HERE / "cases.yaml").read_text(), yaml.CSafeLoader)
    marks = find_marks()
    return [case for row in rows for case in _cases_of(row, marks, seed)]


def find_marks() -> dict[str, str]:
    """Return mark -> ``file:line``, from the comments in the scripts."""
    found = {}
    for script in SCRIPTS:
        for number, line in enumerate((HERE / script).read_text().splitlines(), 1):
            if "# at: " in line:
                found[line.rpartition("# at: ")[2].strip()] = f"{script}:{number}"
    return found


def choose_quick(cases: list[Case]) -> list[Case]:
    """Return about a twelfth of the cases, of all classes."""
    return [case for at, case in enumerate(cases) if at % QUICK_EVERY == 0]


def _cases_of(row: dict[str, Any], marks: dict[str, str], seed: int) -> Iterator[Case]:
    for place, by, ms in product(row.get("at", ["none"]), row["by"], row.get("ms", [0])):
        engine, launcher, size = by.split("/")
        ranks, odd = int(size), row.get("odd", "rank")
        words = (
            row["class"],
            row["fault"],
            place,
            by.replace("/", "-"),
            odd,
            ms,
            *row.get("arguments", [])[1:],
        )
        name = "/".join(str(each) for each in words if each not in ("rank", 0, "none"))
        dice = random.Random(f"{seed} {name}")
        mark = row.get("mark", row["fault"])
        healthy = row["class"] in ("healthy", "asked")
        blamed = () if healthy else _choose_odd(odd, ranks, dice)
        first = 100 if row["class"] == "slow" else 6
        yield Case(
            name=name, klass=row["class"], fault=row["fault"], place=place,
            engine=engine, launcher=launcher, ranks=ranks, odd=blamed,
            at_step=first + dice.randrange(20), slow_ms=ms * (0.9 + 0.2 * dice.random()),
            kinds=tuple(row.get("kinds", ())), mark=marks.get(mark, "") if row["class"] == "hang" else "",
            waits=_words(row), extra=tuple(row.get("arguments", ())),
            held_out=bool(zlib.crc32(name.encode()) & 1),
            hosts=tuple(sorted({f"node{rank // (ranks // NODES) + 1}" for rank in blamed})),
        )  # fmt: skip


def _words(row: dict[str, Any]) -> tuple[str, ...]:
    waits = row.get("waits", "reduce" if row["class"] == "hang" else "any")
    return () if waits == "any" else tuple(waits.split("|"))


def _choose_odd(odd: str, ranks: int, dice: random.Random) -> tuple[int, ...]:
    each = ranks // NODES
    match odd:
        case "rank":
            return (dice.randrange(ranks),)
        case "host":
            return tuple(range(each, ranks))
        case "pair":
            first = dice.randrange(ranks // 2) * 2
            return (first, first + 1)
        case _:
            return (dice.randrange(ranks),) if odd == "any" else tuple(range(ranks))
