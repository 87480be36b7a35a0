"""How the view of the hosts shares its lines, and what it keeps of the last minutes."""

import msgspec
import pytest

from distconsole.model.events import HostStatus
from distconsole.model.run_events import BusyProcess, GpuSample
from distconsole.tui.view_models.hosts import EACH_SECONDS, KEPT, LoadModel, Recent
from distconsole.tui.views.cluster.host import Process, _command, processes_on, unread_because
from distconsole.tui.views.cluster.rows import host_rows
from distconsole.tui.views.cluster.view import LEAST_GPUS, LEAST_HOSTS, LEAST_PLOT, share_lines
from distconsole.tui.widgets.plots import MOST_ROWS, spread
from fakes import scenes

STRANGER = "812 mallory python steal.py"


def load_of_node1(strangers: tuple[str, ...] = ()) -> LoadModel:
    """One host with four GPUs, seen at 100 s; ``strangers`` are on all but the second."""
    load = LoadModel()
    for event in scenes.hosts(1, 4):
        if isinstance(event, GpuSample):
            on = strangers if event.gpu != 1 else ()
            event = msgspec.structs.replace(event, strangers=on)
        load.fold(event, 100.0)
    return load


@pytest.mark.parametrize("frame", [1, 2])
@pytest.mark.parametrize("gpus", [0, 2, 16, 800])
@pytest.mark.parametrize("hosts", [2, 6, 104])
def test_lines_are_used_once_and_tables_have_theirs_before_plots(
    hosts: int, gpus: int, frame: int
) -> None:
    for lines in range(8, 96):
        above, plots, below = share_lines(lines, frame, hosts, gpus, 6)
        assert above + plots + below == lines
        assert bool(below) == bool(gpus)
        assert plots == 0 or frame + LEAST_PLOT <= plots
        assert plots <= spread(plots, frame, 6, lines)[0] * (frame + max(MOST_ROWS, lines // 3))
        if plots:
            assert above >= min(frame + hosts, frame + 1 + LEAST_HOSTS)
            assert below >= (frame + 1 + min(gpus, LEAST_GPUS) if gpus else 0)


def test_a_figure_is_kept_as_means_with_blanks_where_nothing_was_measured() -> None:
    recent = Recent()
    for seconds, value in ((0.0, 1.0), (1.0, 3.0), (2 * EACH_SECONDS, 8.0)):
        recent.put(seconds, value)
    assert recent.until(2)[-4:] == (None, 2.0, None, 8.0)
    assert recent.until(1)[-2:] == (2.0, None)
    assert recent.until(3)[-2:] == (8.0, None)
    assert recent.until(2 + KEPT) == (None,) * KEPT
    for place in range(3 * KEPT):
        recent.put(place * EACH_SECONDS, float(place))
    assert recent.until(3 * KEPT - 1) == tuple(map(float, range(2 * KEPT, 3 * KEPT)))


def test_a_process_on_several_gpus_is_one_row_with_all_of_them() -> None:
    load = load_of_node1((STRANGER,))
    (row,) = host_rows(load, ("node1",), 100.0)
    processes = processes_on(row, (), load, 100.0)
    assert [(each.pid, each.whose, each.gpu) for each in processes] == [
        ("812", "mallory", "0,2-3")
    ]


def test_why_processes_are_not_known_is_said() -> None:
    busy = (BusyProcess(pid=7, user="me", command="python a.py", cpu=99.0, memory=1),)

    def why(load: LoadModel, now: float) -> str:
        (row,) = host_rows(load, ("node1",), now)
        told = unread_because(row, load, now)
        assert bool(processes_on(row, (), load, now)) == (not told)
        return told

    load = load_of_node1()
    assert why(load, 101.0) == "not read yet"
    load.seen_at["node1"] = 131.0  # as samples without a list came
    assert why(load, 131.0) == "its agent sends no list"
    load.busy["node1"] = 131.0, busy
    assert why(load, 132.0) == ""
    load.seen_at["node1"] = 190.0
    assert why(load, 190.0) == "read 59 s ago, too long"
    assert why(load, 230.0) == "silent for 40 s"
    load.fold(HostStatus(host="node1", reachable=False), 230.0)
    assert why(load, 230.0) == "no connection"


@pytest.mark.parametrize(
    ("cells", "shown"),
    [
        (0, "/opt/conda/bin/python /home/me/train.py --lr 1"),
        (46, "/opt/conda/bin/python /home/me/train.py --lr 1"),
        (45, "…/python /home/me/train.py --lr 1"),
        (30, "…/python …/train.py --lr 1"),
        (4, "…/python …/train.py --lr 1"),
    ],
)
def test_the_folders_of_a_command_give_way(cells: int, shown: str) -> None:
    process = Process("7", "me", "", "/opt/conda/bin/python /home/me/train.py --lr 1")
    assert _command(process, cells).plain == shown
