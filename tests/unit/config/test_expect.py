"""``[expect]`` of the configuration: versions, sizes, limits; for all, for a cluster, for a host."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from distconsole.config.load import read_config
from distconsole.config.schema import Config
from distconsole.errors import ConfigError
from distconsole.model.expectation import CollectiveExpectation, Expectation


def config(folder: Path, text: str) -> Config:
    path = folder / "distconsole.toml"
    path.write_text(text)
    return read_config(path)


def test_a_hosts_own_word_counts_then_its_clusters_then_everybodys(tmp_path: Path) -> None:
    found = config(
        tmp_path,
        """
        [expect]
        torch = ">=2.4"
        python = "3.11"
        gpus = 8
        memlock = "unlimited"
        disk-free = "10GiB"
        packages = {numpy = "2.1.0", scipy = ">1"}
        collectives = [{op = "all_reduce", bytes = "64MiB", busbw_gbs = 10}]
        [clusters.lab]
        hosts = "gpu[1-2]"
        [clusters.lab.expect]
        gpus = 4
        [hosts."gpu[2-3]".expect]
        gpu_model = "A100"
        [hosts.gpu2.expect]
        gpus = 2
        packages = {numpy = "==1.26.*"}
        """,
    )
    lab = found.clusters["lab"]
    assert found.expect == Expectation(
        torch=">=2.4",
        python="==3.11.*",
        gpus=8,
        memlock=math.inf,
        disk_free=10 * 1024.0**3,
        packages={"numpy": "==2.1.0.*", "scipy": ">1"},
        collectives=(CollectiveExpectation("all_reduce", 64 * 1024**2, busbw_gbs=10.0),),
    )
    first, second = found.expected("gpu1", lab), found.expected("gpu2", lab)
    assert (first.gpus, first.gpu_model, first.torch) == (4, None, ">=2.4")
    assert (second.gpus, second.gpu_model) == (2, "A100")
    assert second.packages == {"numpy": "==1.26.*", "scipy": ">1"}
    assert found.expected("gpu3").gpus == 8
    assert (found.hosts["gpu2"].nic, found.over(Config()).expect) == (None, found.expect)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[expect]\ntorhc = '2'", ":2: unknown key 'torhc' in [expect]", "did you mean 'torch'?"),
        ("[expect]\n\ntorch = 'new'", ":3: 'torch' must be a version such as", ""),
        ("[expect]\ngpus = -1", ":2: 'gpus' must be a whole number from 0, not -1", ""),
        ("[expect]\nshm = '8 apples'", ":2: 'shm' must be a size", ""),
        ("[expect]\nrtt_us = 0", ":2: 'rtt_us' must be a number above 0", ""),
        ("[hosts.a.expect]\ngpu = 1", ":2: unknown key 'gpu' in [hosts.a.expect]", "'gpus'"),
        ("[clusters.l]\nhosts = 'a'\n[clusters.l.expect]\nmpy = '1'", ":4: unknown key", "'mpi'"),
        ("expect = 3", ":1: 'expect' must be a table: [expect]", ""),
        ("[expect]\npackages = 3", ":2: 'packages' must be a table", ""),
        ("[expect.packages]\nnumpy = 3", ":2: 'numpy' must be a version", ""),
        (
            "[[expect.collectives]]\nop = 'allreduce'\nbusbw_gbs = 3",
            ":2: 'op' must be one of all_reduce",
            "did you mean 'all_reduce'?",
        ),
        (
            "[[expect.collectives]]\nop = 'all_reduce'",
            ":1: [[expect.collectives]]: each needs",
            "",
        ),
    ],
)
def test_what_means_nothing_is_refused_with_its_line_and_the_nearest_name(
    tmp_path: Path, text: str, message: str, hint: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        config(tmp_path, text)
    assert message in refused.value.message
    assert hint in refused.value.hint
