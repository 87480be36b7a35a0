"""How a check's rows share the lines."""

from distconsole.tui.views.check_rows import GridRow, group_rows, groups_with_room

ROWS = [
    GridRow(check, {"node1": (outcome,)}, ("node1",))
    for check, outcome in (
        ("net.mtu", "fail"),
        *((f"os.{number}", "pass") for number in range(5)),
        ("ssh.reach", "pass"),
    )
]


def test_groups_are_unfolded_while_their_checks_fit_below_all_groups_the_worst_first() -> None:
    assert groups_with_room(ROWS, 3) == frozenset()
    assert groups_with_room(ROWS, 4) == {"net"}
    assert groups_with_room(ROWS, 9) == {"net", "os"}
    assert groups_with_room(ROWS, 10) == {"net", "os", "ssh"}
    for lines in range(3, 12):
        assert len(group_rows(ROWS, groups_with_room(ROWS, lines))) <= lines
