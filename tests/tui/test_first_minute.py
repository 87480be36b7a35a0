"""Claims about a console that opens without hosts: it offers those that files know, and connects to none before a choice."""

import contextlib
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from distconsole.errors import UsageError
from distconsole.model import requests as ask
from distconsole.tui.app import ConsoleApp
from distconsole.tui.prompt.completer import LineCompleter
from distconsole.tui.session import ConsoleSession
from distconsole.tui.views.help import help_page
from distconsole.tui.views.launch import LaunchView
from fakes import scenes
from fakes.stage import SMALL, Stage, on_screen, on_stage, screen_text, staged

pytestmark = pytest.mark.usefixtures("utc", "home", "colours")

SCENES = {ask.Top: scenes.hosts, ask.Check: scenes.checked, ask.Runs: scenes.past_runs}
ALONE = ask.OpenConsole()
SSH_CONFIG = """\
Host bastion
    HostName gate.example.com
Host node1 node2  # in the cellar
    ProxyJump me@bastion
Host github.com
    User git
Host *
    ServerAliveInterval 30
"""


@pytest.fixture
def folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder of somebody whose ssh_config has two machines, a jump host and a Git server."""
    write_ssh_config(home, SSH_CONFIG)
    folder = home / "project"
    folder.mkdir()
    os.mkfifo(folder / "hosts")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("SLURM_CONF", str(folder / "hosts"))
    return folder


def write_ssh_config(home: Path, text: str) -> None:
    (home / ".ssh").mkdir(exist_ok=True)
    (home / ".ssh" / "config").write_text(text)


def alone() -> tuple[ConsoleApp, Stage]:
    return staged(SCENES, request=ALONE)


def hosts_of(stage: Stage, kind: type) -> list[str | None]:
    return [each.where.hosts for each in stage.asked if isinstance(each, kind)]


@pytest.mark.usefixtures("folder")
async def test_hosts_of_ssh_config_are_offered_and_none_is_connected_before_the_choice() -> None:
    app, stage = alone()
    async with on_screen(app, stage):
        first, second, *lines = screen_text(app).splitlines()
        assert "host" not in first.replace("distconsole", "")
        assert "NO HOSTS YET  ~/.ssh/config knows node1, node2" in second
        table = "\n".join(lines)
        assert "node1, node2" in table
        assert "github" not in table
        assert "bastion is left out: it only leads to others." in table
        assert "uses both" in table
        for key in ("Enter use", "i set up", "d demo", "t this machine"):
            assert key in lines[-1]
        for key in (
            "Enter ",
            ":     hosts a,b",
            "i     set up",
            "d     demo",
            "t     this machine",
        ):
            assert f" {key}" in table
        assert not stage.asked
        assert app.session.own is None


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "how",
    [
        "enter",
        "hosts node1,node2",
        pytest.param("top --hosts node1,node2", marks=pytest.mark.campaign),
    ],
)
async def test_after_the_choice_top_check_the_form_and_the_tab_bar_mean_the_same_hosts(
    how: str,
) -> None:
    app, stage = alone()
    async with on_screen(app, stage):
        if how == "enter":
            await stage.pressed("enter")
        else:
            await stage.typed(how)
        assert "2 hosts" in screen_text(app).splitlines()[0]
        assert app.main.view == "cluster"
        assert "NO HOSTS" not in screen_text(app)
        await stage.typed("check")
        assert {*hosts_of(stage, ask.Top), *hosts_of(stage, ask.Check)} <= {"node1,node2", None}
        assert app.session.where.hosts == "node1,node2"
        await stage.pressed("ctrl+n")
        form = app.main.query_one(LaunchView)
        assert [host.name for host in app.main.views.launch.known_hosts()] == ["node1", "node2"]
        assert form.display


@pytest.mark.usefixtures("folder")
async def test_before_the_choice_a_verb_that_needs_hosts_says_how_to_choose() -> None:
    app, stage = alone()
    stage.scenes.pop(ask.Check)
    async with on_screen(app, stage):
        await stage.typed("check")
        assert "no hosts are chosen yet" in screen_text(app)
        assert not hosts_of(stage, ask.Check)
        await stage.pressed("escape", "t")
        assert app.session.where.hosts == "localhost"
        assert "1 host" in screen_text(app).splitlines()[0]


@pytest.mark.usefixtures("folder")
def test_before_the_choice_a_run_finds_its_own_hosts() -> None:
    session = ConsoleSession(ask.Where())
    try:
        session.begin(asks=True)
        for line in ("attach last", "stop last", "why last", "check --hosts node1"):
            request = session.request(line)
            assert isinstance(request, ask.OnHosts)
        with session(ask.Where()) as opened:
            assert all(host.local for host in opened.cluster.hosts)
        for line in ("check", "top", "watch", "why --job 1", "run t.py", "setup"):
            with pytest.raises(UsageError, match="no hosts are chosen yet"):
                session.request(line)
    finally:
        session.end()


@pytest.mark.usefixtures("folder")
async def test_top_on_other_hosts_leaves_the_hosts_that_were_chosen() -> None:
    app, stage = alone()
    async with on_screen(app, stage):
        await stage.typed("hosts node1")
        await stage.typed("top --hosts node2")
        assert hosts_of(stage, ask.Top)[-1] == "node2"
        assert app.session.hosts == ("node1",)
        await stage.typed("hosts node2")
        assert app.session.hosts == ("node2",)


@pytest.mark.parametrize("writes", [True, False])
async def test_after_init_its_hosts_are_chosen_though_its_check_failed(
    writes: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(program: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        if writes:
            (folder / "distconsole.toml").write_text(
                'cluster = "lab"\n[clusters.lab]\nhosts = ["node2"]\n'
            )
        return subprocess.CompletedProcess(program, 1)

    app, stage = alone()
    async with on_screen(app, stage):
        with monkeypatch.context() as patched:
            patched.setattr(app, "suspend", contextlib.nullcontext)
            patched.setattr("builtins.input", lambda _: "")
            patched.setattr("subprocess.run", init)
            await stage.typed("init")
        assert app.session.hosts == (("node2",) if writes else ())


async def test_a_hostfile_and_clusters_are_offered_too_and_arrows_choose(folder: Path) -> None:
    (folder / "hostfile").write_text("gpu1 slots=4\ngpu2 slots=4\n")
    (folder / "distconsole.toml").write_text('[clusters.lab]\nhosts = ["lab[1-2]"]\n')
    app, stage = alone()
    async with on_screen(app, stage):
        text = screen_text(app)
        places = ("cluster lab", "./hostfile", "~/.ssh/config", "this machine")
        rows = [text.index(place, text.index("where from")) for place in places]
        assert rows == sorted(rows)
        await stage.pressed("down", "enter")
        assert app.session.hosts == ("gpu1", "gpu2")
        assert [host.slots for host in app.session.own.cluster.hosts] == [4, 4]


async def test_of_hundreds_of_hosts_a_few_are_shown_and_enter_asks_which(
    folder: Path, home: Path
) -> None:
    write_ssh_config(home, "".join(f"Host gpu{n:03}\n" for n in range(300)))
    app, stage = alone()
    async with on_screen(app, stage):
        assert "300" in screen_text(app)
        assert "gpu000, gpu001" in screen_text(app)
        await stage.pressed("enter")
        assert app.main.prompt.value == "hosts "
        assert app.session.own is None
        completer: LineCompleter = app.main.completer
        assert [each.word for each in completer.complete("hosts gpu29")] == [
            f"gpu29{n}" for n in range(10)
        ]
        assert [each.line for each in completer.complete("hosts gpu001,gpu012")] == [
            "hosts gpu001,gpu012"
        ]


@pytest.mark.usefixtures("folder")
async def test_a_demo_and_a_run_that_is_followed_choose_no_hosts() -> None:
    app, stage = alone()
    stage.scenes |= {ask.Demo: scenes.training, ask.Attach: scenes.training}
    async with on_screen(app, stage):
        await stage.pressed("d")
        await stage.typed(f"attach {scenes.RUN}")
        await stage.pressed("2")
        text = screen_text(app)
        assert "NO HOSTS YET" in text
        assert "GPUs" not in text
        assert "cpu%" not in text


@pytest.mark.parametrize("how", ["named", "cluster", "slurm", "pbs"])
async def test_hosts_that_are_named_need_no_choice(
    how: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = ALONE
    if how == "named":
        request = ask.OpenConsole(where=ask.Where(hosts="node1,node2"))
    elif how == "cluster":
        (folder / "distconsole.toml").write_text(
            'cluster = "lab"\n[clusters.lab]\nhosts = ["node1", "node2"]\n'
        )
    elif how == "pbs":
        (folder / "nodes").write_text("node1\nnode2\n")
        monkeypatch.setenv("PBS_NODEFILE", str(folder / "nodes"))
    else:
        monkeypatch.setenv("SLURM_JOB_NODELIST", "node[1-2]")
    async with on_stage(SCENES, request=request) as (app, _, _):
        assert app.session.hosts == ("node1", "node2")
        assert "NO HOSTS" not in screen_text(app)


async def test_where_no_file_knows_a_host_the_console_opens_on_this_machine(home: Path) -> None:
    write_ssh_config(home, "Host *\n    User me\nHost !a *.lab\n")
    app, stage = alone()
    async with on_screen(app, stage):
        assert len(app.session.hosts) == 1


@pytest.mark.usefixtures("folder")
async def test_hosts_alone_says_which_and_a_wrong_list_leaves_them() -> None:
    app, stage = alone()
    async with on_screen(app, stage):
        await stage.typed("hosts node1 node2")
        own = app.session.own
        await stage.typed("hosts node[3-1]")
        assert app.session.own is own
        await stage.typed("hosts")
        assert "hosts: node1, node2" in screen_text(app)


async def test_hosts_takes_and_offers_options_of_hosts_alone(folder: Path) -> None:
    (folder / "machines").write_text("node1\nnode2\n")
    app, stage = alone()
    async with on_screen(app, stage):
        completer: LineCompleter = app.main.completer
        offered = {each.word for each in completer.complete("hosts --")}
        assert {"--hosts", "--hostfile", "--cluster", "--python"} <= offered
        assert not offered & {"--once", "--json", "--fail-if", "--interval", "--yes"}
        lines = [each.line for each in completer.complete("hosts --hostfile mac")]
        assert lines == ["hosts --hostfile machines"]
        assert [each.line for each in completer.complete("save --")] == ["save --yes"]
        assert completer.complete("screenshot --") == []
        for options in ("--once", "--json", "--interval 3"):
            await stage.typed(f"hosts --hosts node1 {shlex.join(options.split())}")
            assert "hosts takes only options that say which hosts" in screen_text(app)
            assert app.session.own is None
        await stage.typed("hosts --hostfile machines")
        assert app.session.hosts == ("node1", "node2")


def test_help_says_on_its_first_screen_how_to_get_to_hosts() -> None:
    app, _ = alone()
    lines = help_page(app.main.shortcuts, "cluster", SMALL[0]).plain.splitlines()[: SMALL[1] - 4]
    assert "hosts" in "\n".join(lines)
