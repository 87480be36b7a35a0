"""Claims about ``init`` away from its hosts: it does not guess, and its file is whole, or is not there."""

from pathlib import Path

import pytest

from distconsole.config.load import load_config
from distconsole.errors import ConfigError, UsageError
from distconsole.model.cluster import Cluster, Host
from distconsole.model.events import Narration
from distconsole.model.names import HostName
from distconsole.model.requests import Init, Where
from distconsole.operations import Control, perform
from distconsole.operations.init.init import (
    Looked,
    Python,
    ask_python,
    file_text,
    leave_out_twins,
    write,
)
from fakes.sessions import no_session


def refusal(request: Init) -> str:
    with pytest.raises(UsageError) as caught:
        list(perform(request, no_session, Control()))
    return f"{caught.value.message}; {caught.value.hint}"


@pytest.fixture(autouse=True)
def folder(cwd: Path) -> Path:
    return cwd


def test_where_nobody_can_answer_it_says_how_a_script_asks() -> None:
    assert "only in a shell on a terminal; in a script: distconsole init --hosts" in refusal(
        Init()
    )


def test_yes_guesses_no_hosts() -> None:
    assert "init --yes does not guess hosts" in refusal(Init(yes=True))


def test_a_file_that_is_there_is_not_replaced_unasked(folder: Path) -> None:
    file = folder / "distconsole.toml"
    file.write_text("theme = 'dark'\n")
    request = Init(where=Where(hosts="a"), yes=True)
    assert f"{file} is there already; move it away" in refusal(request)
    assert file.read_text() == "theme = 'dark'\n"


def test_the_file_means_what_was_chosen_and_needs_no_further_word_of_trust(folder: Path) -> None:
    hosts = (Host(HostName("gpu1"), user="me", slots=4), Host(HostName("gpu2"), port=2222))
    looked = Looked(
        8, {"/opt/env/bin/python": Python("3.11.4", "2.4.0 for CUDA 12.1", has_gpus=True)}
    )
    found = dict.fromkeys((host.name for host in hosts), looked)
    request = Init(cluster="my lab", where=Where(setup='echo "a\\b"'))
    write(
        folder / "distconsole.toml",
        file_text(request, Cluster(hosts), found, "/opt/env/bin/python"),
    )
    config = load_config()
    cluster = config.clusters["my lab"]
    assert (config.cluster, cluster.hosts) == ("my lab", ("me@gpu1:4", "gpu2/2222"))
    settings = config.settings("gpu1", cluster)
    assert (settings.python, settings.setup) == ("/opt/env/bin/python", 'echo "a\\b"')
    assert config.verbs["run"] == {"nproc": "gpu"}


def test_what_the_nodes_call_python3_needs_no_key(folder: Path) -> None:
    looked = Looked(0, {"/usr/bin/python3": Python("3.12.1", is_default=True)})
    cluster = Cluster((Host(HostName("a")),))
    write(
        folder / "distconsole.toml",
        file_text(Init(), cluster, {HostName("a"): looked}, "/usr/bin/python3"),
    )
    config = load_config()
    assert config.settings("a", config.clusters["lab"]).python is None
    assert config.verbs["run"] == {}


def test_a_file_that_could_not_be_read_is_not_written_over_the_old_one(folder: Path) -> None:
    file = folder / "distconsole.toml"
    file.write_text("theme = 'dark'\n")
    with pytest.raises(ConfigError):
        write(file, "clusters = 7")
    assert file.read_text() == "theme = 'dark'\n"
    assert [path.name for path in folder.iterdir()] == [file.name]


def test_that_no_python_has_torch_is_said_before_one_is_chosen() -> None:
    def told(torch: str) -> list[str]:
        found = {HostName("gpu1"): Looked(0, {"/usr/bin/python3": Python("3.12.1", torch)})}
        events = ask_python(Init(yes=True), Cluster(()), found, Control())
        return [each.text for each in events if isinstance(each, Narration)]

    warning = "none of these has torch: pip install it into one of them, or name another"
    assert [line for line in told("") if warning in line]
    assert not [line for line in told("2.4.0") if warning in line]


def test_of_two_names_of_one_machine_one_is_kept_if_the_person_agrees() -> None:
    looked = Looked(0, {"/usr/bin/python3": Python("3.12.1")}, "gpu1 4d3a")
    names = [HostName("gpu1"), HostName("gpu1.lab"), HostName("gpu2")]
    found = dict(zip(names, [looked, looked, Looked(0, {}, "gpu2 77c0")], strict=True))
    asked: list[str] = []
    control = Control()
    control.ask = lambda question: asked.append(question) or ""
    assert list(leave_out_twins(Init(), found, control)) == []
    assert asked == ["gpu1, gpu1.lab are names of one machine. Keep gpu1 alone? [Y/n]"]
    assert list(found) == ["gpu1", "gpu2"]
    both = dict.fromkeys(names[:2], looked)
    (warning,) = leave_out_twins(Init(yes=True), both, Control())
    assert isinstance(warning, Narration)
    assert warning.text.startswith("gpu1, gpu1.lab are names of one machine: ranks of both")
    assert list(both) == ["gpu1", "gpu1.lab"]
