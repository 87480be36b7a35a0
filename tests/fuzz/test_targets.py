"""Nothing that others may write breaks what reads it: the kept cases, and some thousand inputs made of them."""

import random
import zlib
from collections.abc import Iterator

import pytest

from fuzz.judging import Target, judge, leave_sandbox
from fuzz.mutation import mutate
from fuzz.targets import TARGETS

TRIES = 100

every_target = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    yield
    leave_sandbox()


@every_target
def test_every_kept_case_is_read_as_promised(target: Target) -> None:
    for path in target.cases():
        failure = judge(target, target.read_case(path))
        assert failure is None, f"{path}: {failure}"


@every_target
def test_what_is_made_of_the_cases_is_read_as_promised(target: Target) -> None:
    tries = TRIES // target.slow
    dice = random.Random(zlib.crc32(target.name.encode()))
    if target.make is not None:
        for _ in range(tries):
            hold(target, target.make(dice))
        return
    pool = [path.read_bytes() for path in target.cases()]
    assert pool, "it has no case to begin with"
    for _ in range(tries):
        hold(target, mutate(dice.choice(pool), pool, dice, min(target.max_bytes, 8192)))


def hold(target: Target, data: object) -> None:
    failure = judge(target, data)
    assert failure is None, f"{data!r}"[:2000] + f"\n{failure}"
