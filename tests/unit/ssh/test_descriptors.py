"""A console of many hosts may open what they need, and one of few leaves its limit as it is."""

import os
import resource
from collections.abc import Iterator

import pytest

from distconsole.config.schema import Config
from distconsole.model.cluster import Cluster, Host
from distconsole.model.names import HostName
from distconsole.session import Session
from distconsole.ssh.transport import readable

SOFT = 512


@pytest.fixture(autouse=True)
def few() -> Iterator[int]:
    """Descriptors are few; the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (SOFT, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def limit_with(hosts: int) -> tuple[int, int]:
    names = (HostName(f"n{number}") for number in range(hosts))
    Session(Config(), Cluster(tuple(map(Host, names)))).close()
    return resource.getrlimit(resource.RLIMIT_NOFILE)


def test_many_hosts_may_open_what_they_need_and_few_leave_the_limit(few: int) -> None:
    assert limit_with(8) == (SOFT, few)
    assert limit_with(100) == (256 + 8 * 100, few)
    assert limit_with(3000) == (min(256 + 8 * 3000, few), few)


def test_a_descriptor_above_1023_can_be_waited_for(few: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, few))
    reading, writing = os.pipe()
    high = 1500
    os.dup2(reading, high)
    try:
        assert readable([high], 0.0) == []
        os.write(writing, b"x")
        assert readable([high, reading], 5.0) == [high, reading]
    finally:
        for each in (reading, writing, high):
            os.close(each)
