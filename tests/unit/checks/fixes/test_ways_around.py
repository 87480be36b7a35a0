"""What is offered where ports are blocked: only what was seen to work, and no way that is none."""

from __future__ import annotations

from distconsole.checks.fixes.ways_around import through_ports


def test_the_kernel_is_kept_to_the_widest_stretch_that_was_reached() -> None:
    hint = through_ports("c", [40_100, 44_900], [33_000, 36_000, 45_500, 52_000, 60_900])
    first, second, third = hint.splitlines()
    assert first == "allow all TCP between the hosts; on c: sudo iptables -S"
    assert second.endswith('on c: sudo sysctl -w net.ipv4.ip_local_port_range="45500 60900"')
    assert third.startswith("without root there is no way round it")
    assert "--mca btl_tcp_port_min_v4 45500 --mca btl_tcp_port_range_v4 15400" in third


def test_no_range_is_named_that_was_not_tried() -> None:
    for lost, reached in (([40_001], [50_001]), ([40_001], []), ([], [])):
        hint = through_ports("c", lost, reached)
        assert "sysctl net.ipv4.ip_local_port_range on c" in hint
        assert "sysctl -w" not in hint
