"""Which hosts: what has to be said again where others are known already."""

from __future__ import annotations

import pytest

from distconsole.model.requests import Where

KEPT = Where(hosts="a,b", ssh_config="/etc/ours", python="/opt/python")


@pytest.mark.parametrize(
    ("where", "said"),
    [
        (KEPT, Where()),
        (Where(hosts="a", ssh_config="/etc/ours", python="/opt/python"), Where(hosts="a")),
        (Where(hostfile="h", ssh_config="/else", python="/opt/python"), Where(hostfile="h", ssh_config="/else")),
        (Where(hosts="a,b", ssh_config="/etc/ours", python="/usr/python"), Where(python="/usr/python")),
    ],
)  # fmt: skip
def test_only_what_differs_is_said_again_and_means_the_same(where: Where, said: Where) -> None:
    assert where.beyond(KEPT) == said
    assert said.over(KEPT) == where
