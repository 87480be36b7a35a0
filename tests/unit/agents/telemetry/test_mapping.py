"""Ranks to GPUs, by process and by CUDA_VISIBLE_DEVICES, over the ways people write it."""

from __future__ import annotations

import pytest

from distconsole_agent.telemetry.mapping import GpuUnit, ranks_by_unit, visible_units

H100 = "NVIDIA H100"
GPUS = tuple(
    GpuUnit(key=f"GPU-{index}aaa-{index}", index=index, uuid=f"GPU-{index}aaa-{index}", model=H100)
    for index in range(4)
)
MIXED = (*GPUS[:2], GpuUnit("GPU-l4", 2, "GPU-l4", "NVIDIA L4"))


def instance(gpu: int, at: int) -> GpuUnit:
    return GpuUnit(
        key=f"MIG-{gpu}{at}-dead",
        index=gpu,
        uuid=f"MIG-{gpu}{at}-dead",
        model=H100,
        mig=True,
        gpu_uuid=GPUS[gpu].uuid,
        legacy_mig=f"MIG-{GPUS[gpu].uuid}/{at}/0",
    )


WITH_MIG = (instance(0, 1), instance(0, 2), GPUS[1])


def rank(number: int, local_rank: int, visible: str | None) -> dict[str, object]:
    return {
        "rank": number,
        "local_rank": local_rank,
        "pid": 100 + number,
        "cuda_visible_devices": visible,
    }


@pytest.mark.parametrize(
    ("written", "indices"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("2", [2]),
        ("3,1", [3, 1]),
        (" 3 , 1 ", [3, 1]),
        ("1gpu2,2ampere", [1, 2]),
        ("0,-1,2", [0]),
        ("0,9,2", [0]),
        ("NoDevFiles", []),
        ("1,1", []),
        ("GPU-2aaa-2", [2]),
        ("GPU-3,GPU-0aaa", [3, 0]),
        ("GPU-", []),
        ("GPU-zzz,GPU-0", []),
    ],
)
def test_the_list_of_visible_devices_is_read_as_cuda_reads_it(
    written: str | None, indices: list[int]
) -> None:
    assert [unit.index for unit in visible_units(GPUS, written)] == indices


def test_numbers_mean_nothing_where_cuda_may_sort_unlike_gpus() -> None:
    assert visible_units(MIXED, "0,1") == []
    assert visible_units(MIXED, None) == []


def test_numbers_are_pci_order_where_the_job_says_so() -> None:
    assert visible_units(MIXED, "2,0", "PCI_BUS_ID") == [MIXED[2], MIXED[0]]


def test_identifiers_hold_whatever_the_order_is() -> None:
    assert visible_units(MIXED, "GPU-l4") == [MIXED[2]]


@pytest.mark.parametrize("written", ["MIG-02-dead", "MIG-02", f"MIG-{GPUS[0].uuid}/2/0"], ids=str)
def test_an_instance_is_found_by_both_of_its_names(written: str) -> None:
    assert visible_units(WITH_MIG, written) == [WITH_MIG[1]]


def test_a_gpu_in_mig_mode_shows_its_first_instance_under_its_number() -> None:
    assert visible_units(WITH_MIG, "0,1") == [WITH_MIG[0], GPUS[1]]
    assert visible_units(WITH_MIG, GPUS[0].uuid) == [WITH_MIG[0]]


def test_a_name_that_fits_two_instances_ends_the_list() -> None:
    assert visible_units(WITH_MIG, "MIG-0") == []


def test_each_rank_is_expected_on_the_device_of_its_local_rank() -> None:
    ranks = [rank(4, 0, None), rank(5, 1, None)]
    assert ranks_by_unit(GPUS, ranks, {}) == {GPUS[0].key: 4, GPUS[1].key: 5}


def test_a_rank_that_sees_one_device_is_on_it_whatever_its_local_rank() -> None:
    ranks = [rank(0, 0, "3"), rank(1, 1, "GPU-1aaa")]
    assert ranks_by_unit(GPUS, ranks, {}) == {GPUS[3].key: 0, GPUS[1].key: 1}


def test_a_shared_list_is_indexed_by_local_rank() -> None:
    ranks = [rank(0, 0, "2,3"), rank(1, 1, "2,3"), rank(2, 2, "2,3")]
    assert ranks_by_unit(GPUS, ranks, {}) == {GPUS[2].key: 0, GPUS[3].key: 1}


def test_a_process_seen_on_a_gpu_outweighs_the_variables() -> None:
    ranks = [rank(0, 0, None), rank(1, 1, None)]
    assert ranks_by_unit(GPUS, ranks, {GPUS[3].key: [0]}) == {GPUS[3].key: 0, GPUS[1].key: 1}


def test_a_rank_on_several_gpus_is_named_on_each() -> None:
    holders = {GPUS[0].key: [0], GPUS[1].key: [0], GPUS[2].key: []}
    assert ranks_by_unit(GPUS, [rank(0, 0, None)], holders) == {GPUS[0].key: 0, GPUS[1].key: 0}


def test_of_several_ranks_on_one_gpu_the_lowest_is_named() -> None:
    ranks = [rank(1, 1, "0"), rank(0, 0, "0")]
    assert ranks_by_unit(GPUS, ranks, {}) == {GPUS[0].key: 0}
    assert ranks_by_unit(GPUS, ranks, {GPUS[0].key: [1, 0]}) == {GPUS[0].key: 0}


def test_a_rank_beyond_the_visible_devices_is_put_on_none() -> None:
    assert ranks_by_unit(GPUS, [rank(0, 7, None), rank(1, 0, "")], {}) == {}
