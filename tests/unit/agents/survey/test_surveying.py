"""What the files say that torchrun gives to each of its ranks for an exception: torch itself writes them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from distconsole_agent.roll_call import ways
from distconsole_agent.survey.processes import SeenProcess
from distconsole_agent.survey.surveying import SERVER_NOT_ASKED, _call, read_errors
from distconsole_agent.survey.worlds import Rank
from distconsole_agent.system.procfs import Process


def rank_of(pid: int, file: Path | str) -> Rank:
    process = Process(pid, 1, 0, "python3", "S", 0.0, 0, kernel=False)
    return Rank(1, 1, SeenProcess(process, (), {"TORCHELASTIC_ERROR_FILE": str(file)}))


def test_each_rank_has_a_file_of_its_own_whatever_runs_the_same_script_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = pytest.importorskip("torch.distributed.elastic.multiprocessing.errors.error_handler")
    ranks = []
    for job in (1, 2):
        path = tmp_path / str(job) / "error.json"
        path.parent.mkdir()
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
        errors.ErrorHandler().record_exception(ValueError(f"batch\n\x1b[31m of job {job}"))
        ranks.append(rank_of(job, path))
    assert read_errors(ranks) == {
        str(tmp_path / "1/error.json"): "ValueError: batch [31m of job 1",
        str(tmp_path / "2/error.json"): "ValueError: batch [31m of job 2",
    }


@pytest.mark.parametrize(
    "text",
    ["", "[]", "[" * 9999, '{"message": "words"}', '{"message": {}}'],
    ids=["empty", "list", "deep", "words", "nothing"],
)
def test_what_is_no_error_of_torch_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "error.json"
    path.write_text(text)
    ranks = [
        rank_of(1, path),
        rank_of(2, tmp_path / "missing"),
        rank_of(3, ""),
        rank_of(4, "here"),
    ]
    assert read_errors(ranks) == {}


def test_a_rank_of_a_run_is_not_said_to_lack_the_worker_server_that_a_survey_does_not_ask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ways, "find_py_spy", lambda _: None)
    with subprocess.Popen(["sleep", "600"]) as process:
        rank = rank_of(process.pid, "")
        rank.seen.told["DISTCONSOLE_RUN_DIR"] = "/nowhere"
        (call,) = _call([rank], 1.0)
        process.kill()
    refused = {each["way"]: each["why"] for each in call["refused"]}
    assert refused["server"] == SERVER_NOT_ASKED
    assert "py-spy is not on this node's PATH" in refused["py-spy"]
