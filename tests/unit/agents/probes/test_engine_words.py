"""What NCCL says, read by formats of public logs (the links); the lines themselves are made up."""

import os
import random
import socket
from pathlib import Path
from typing import Any

import pytest

from distconsole_agent.probes.collectives.engine_words import (
    MAX_BYTES,
    MAX_PAIRS,
    NcclWords,
    own_sockets,
    read_nccl,
    record_nccl,
    recorded,
)

# https://github.com/NVIDIA/nccl/issues/1052 (2.18.5, RoCE), nccl/issues/769 (a link-local GID)
ROCE_2_18 = """\
n1:14:14 [0] NCCL INFO Bootstrap : Using ens1:10.0.0.1<0>
n1:14:14 [0] NCCL INFO NET/Plugin : No plugin found, using internal implementation
NCCL version 2.18.5+cuda12.0
n1:14:18 [0] NCCL INFO NCCL_IB_GID_INDEX set by environment to 3.
n1:14:18 [0] NCCL INFO NET/IB : Using [0]mlx5_4:1/RoCE [1]mlx5_5:1/RoCE [RO]; OOB ens1:10.0.0.1<0>
n1:14:18 [0] NCCL INFO Using network IB
n1:14:18 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_4'
n1:14:18 [0] NCCL INFO Channel 00/02 :    0   1
n1:14:18 [0] NCCL INFO Channel 01/02 :    0   1
n1:14:18 [0] NCCL INFO Channel 00/0 : 1[2] -> 0[2] [receive] via NET/IB/0
n1:14:18 [0] NCCL INFO Channel 01/0 : 0[2] -> 1[2] [send] via NET/IB/1/GDRDMA
n1:14:22 [0] NCCL INFO NET/IB: Dev 0 Port 1 qpn 58 mtu 3 GID 3 (0/A10B0A0AFFFF0000)
n1:14:22 [0] NCCL INFO NET/IB: Dev 1 Port 1 qpn 59 mtu 3 GID 1 (80FE/FB1CDAFEFFEBC00A)
n1:14:18 [0] NCCL INFO 2 coll channels, 0 nvls channels, 2 p2p channels, 2 p2p channels per peer
n1:14:18 [0] NCCL INFO comm 0x55c6 rank 0 nranks 2 cudaDev 0 nvmlDev 2 busId 4c000 commId 0xbe1e - Init COMPLETE
"""
# nccl/issues/1189 (P2P/CUMEM beside GDRDMA), Azure/aks-rdma-infiniband/issues/30 (…/read), v2.21.5 net_ib.cc (merged devices)
IB_2_21 = """\
NCCL version 2.21.5+cuda12.4
n1:7:9 [1] NCCL INFO NET/IB : Using [0]={[0] mlx5_0:1/IB, [1] mlx5_1:1/IB} [1]mlx5_2:1/IB [RO]; OOB ib0:10.1.0.1<0>
n1:7:9 [1] NCCL INFO Using network IB
n1:7:9 [1] NCCL INFO ncclCommInitRank comm 0x7f rank 1 nranks 4 cudaDev 1 nvmlDev 1 busId 1b commId 0x1 - Init COMPLETE
n1:7:9 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/CUMEM/read
n1:7:9 [1] NCCL INFO Channel 04/0 : 1[1] -> 0[0] via P2P/CUMEM/read
n1:7:9 [1] NCCL INFO Channel 00 : 1[1] -> 2[0] via SHM/direct/direct
n1:7:9 [1] NCCL INFO Channel 03/0 : 1[1] -> 3[1] [send] via NET/IB/2(0)/GDRDMA/Shared
"""
# nccl/issues/1866 (2.27.6), v2.28.9 src/plugin/net.cc ("Assigned NET plugin") and src/debug.cc (time stamps of warnings)
SOCKETS_2_28 = """\
n1:5:5 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>
n1:5:5 [0] NCCL INFO NCCL version 2.28.9+cuda13.0
n1:5:8 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.
n1:5:8 [0] NCCL INFO NET/IB : No device found.
n1:5:8 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0> [1]eth1:fd00::1<0>
n1:5:8 [0] NCCL INFO Assigned NET plugin Socket to comm
n1:5:8 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0
[2025-11-24 04:00:00] n1:5:8 [0] transport/p2p.cc:275 NCCL WARN Cuda failure 217 'peer access is not supported'
n1:5:8 [0] NCCL INFO P2P is disabled between connected GPUs 1 and 0. You can repress this message with NCCL_IGNORE_DISABLED_P2P=1.
"""
# ROCm/rccl/issues/1026 and 1454, ROCm/legacy-rocm-build/issues/6074 (2.30)
RCCL = """\
n1:9:9 [0] NCCL INFO RCCL version : 2.22.3-develop:1a2b3c4
n1:9:9 [0] /src/init.cpp:122 NCCL WARN Missing "iommu=pt" from kernel command line which can lead to system instablity or hang!
n1:9:12 [0] NCCL INFO Channel 00/0 : 0[c1000] -> 1[c6000] via P2P/direct pointer comm 0x1 nRanks 02
n1:9:12 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[0] [send] via NET/AWS Libfabric/3/GDRDMA comm 0x1 nRanks 04
"""


def told(text: str) -> dict[str, Any]:
    facts = read_nccl(text)
    assert facts is not None
    return facts


def test_roce_of_2_18_has_its_devices_addresses_and_channels() -> None:
    facts = told(ROCE_2_18)
    assert facts["version"] == "2.18.5+cuda12.0"
    assert facts["devices"] == ["mlx5_4:1/RoCE", "mlx5_5:1/RoCE"]
    assert facts["pairs"] == [[0, 1, "NET/IB/GDRDMA", 1], [1, 0, "NET/IB", 1]]
    assert facts["gids"] == [(0, 3, False), (1, 1, True)]
    assert facts["channels"] == 2
    assert facts["without_gdr"] == ["HCA 0 'mlx5_4'"]
    assert facts["set"] == {"NCCL_IB_GID_INDEX": "3"}


def test_infiniband_of_2_21_has_merged_devices_and_ways_within_the_host() -> None:
    facts = told(IB_2_21)
    assert facts["devices"] == ["mlx5_0:1/IB", "mlx5_1:1/IB", "mlx5_2:1/IB"]
    assert facts["pairs"] == [
        [1, 0, "P2P/CUMEM/read", 2],
        [1, 2, "SHM/direct/direct", 1],
        [1, 3, "NET/IB/GDRDMA", 1],
    ]


def test_sockets_of_2_28_have_interfaces_and_what_was_warned_of() -> None:
    facts = told(SOCKETS_2_28)
    assert facts["no_device"]
    assert facts["interfaces"] == ["eth0", "eth1"]
    assert facts["pairs"] == [[0, 1, "NET/Socket", 1]]
    assert facts["set"] == {"NCCL_IB_DISABLE": "1"}
    assert [line.split(" ")[0] for line in facts["trouble"]] == ["Cuda", "P2P"]


def test_rccl_says_it_in_nccls_words() -> None:
    facts = told(RCCL)
    assert facts["version"] == "2.22.3-develop"
    assert facts["pairs"] == [
        [0, 1, "P2P/direct pointer", 1],
        [0, 2, "NET/AWS Libfabric/GDRDMA", 1],
    ]
    assert 'Missing "iommu=pt"' in facts["trouble"][0]


@pytest.mark.parametrize("text", ["", "step 1 loss 2.0\n", "Channel 00/0 : 0[0] -> 1[0] via X\n"])
def test_what_is_not_nccls_is_nothing(text: str) -> None:
    assert read_nccl(text) is None


def test_text_may_be_cut_anywhere() -> None:
    for text in (ROCE_2_18, IB_2_21, SOCKETS_2_28, RCCL):
        for size in (1, 7, 64):
            words = NcclWords()
            for at in range(0, len(text), size):
                words.take(text[at : at + size])
            assert words.facts() == read_nccl(text)


def test_any_damage_leaves_bounded_facts_of_the_same_form() -> None:
    chance = random.Random(16)
    lines = "".join((ROCE_2_18, IB_2_21, SOCKETS_2_28, RCCL)).splitlines()
    junk = [
        "\x00",
        "[",
        "]",
        "99999999999999999999",
        "->",
        "via",
        "/",
        "\x1b[31m",
        "é",
        "\u2028",
        "{",
        "GID -1 (",
    ]
    for _ in range(3000):
        text = list("\n".join(chance.choices(lines, k=chance.randrange(1, 12))))
        for _ in range(chance.randrange(6)):
            at = chance.randrange(len(text))
            text[at : at + chance.randrange(12)] = chance.choice(junk)
        facts = read_nccl("".join(text))
        if facts is not None:
            assert all(
                source >= 0 and target >= 0 and channels > 0 and len(way) <= 40
                for source, target, way, channels in facts["pairs"]
            )
            assert all(len(str(each)) <= 200 for each in facts.get("trouble", ()))


def test_a_flood_is_bounded() -> None:
    flood = "".join(
        f"n:1:1 [0] NCCL INFO Channel 00/0 : {rank}[0] -> {rank + 1}[0] via NET/IB/{rank}\n"
        for rank in range(100_000)
    )
    facts = told(flood + "x" * MAX_BYTES)
    assert len(facts["pairs"]) == MAX_PAIRS


def test_what_nccl_writes_by_its_file_is_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "VERSION")
    monkeypatch.setenv("NCCL_DEBUG_FILE", "/nowhere")
    monkeypatch.setenv("NCCL_DEBUG_SUBSYS", "ALL")
    descriptor = record_nccl()
    assert os.environ["NCCL_DEBUG"] == "INFO"
    Path(os.environ["NCCL_DEBUG_FILE"]).write_text(SOCKETS_2_28)  # as by fopen(3)
    facts = recorded(descriptor)
    os.close(descriptor)
    assert facts == read_nccl(SOCKETS_2_28)


def test_the_kernel_tells_the_connections_of_a_process() -> None:
    pair = ["127.0.0.78", "127.0.0.77"]
    with socket.create_server((pair[1], 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection((pair[1], port), source_address=(pair[0], 0)):
            assert pair in own_sockets()
            assert pair not in own_sockets(without_port=port)
