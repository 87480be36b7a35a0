"""A node's load as events: its own, and one a GPU. It keeps nothing between samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import UNSET

from distconsole.model.run_events import GpuSample, NodeSample
from distconsole.rpc.frames import GpuLoad, GpuProcess, NodeLoad

MAX_STRANGERS = 16


def load_events(
    run: str, host: str, node: NodeLoad | None, gpus: Sequence[GpuLoad], t: float
) -> Iterator[NodeSample | GpuSample]:
    """Yield the node's load and that of each of its GPUs.

    Args:
        run: The run's id, or empty where there is none (``top``).
        host: Where it was taken.
        node: None where psutil is missing.
        gpus: Empty without a GPU or its driver.
        t: UNIX seconds on the console's clock.
    """
    if node is not None:
        yield NodeSample(
            t=t,
            run=run,
            host=host,
            cpu=node.cpu,
            mem_used=node.mem_used,
            mem_total=node.mem_total,
            net_rx_s=node.net_rx_s,
            net_tx_s=node.net_tx_s,
            disk_read_s=node.disk_read_s,
            disk_write_s=node.disk_write_s,
            load1=node.load1,
            cpus=node.cpus,
        )
    for gpu in gpus:
        yield _gpu_event(run, host, gpu, t)


def _gpu_event(run: str, host: str, gpu: GpuLoad, t: float) -> GpuSample:
    throttle = gpu.throttle if isinstance(gpu.throttle, tuple) else (gpu.throttle,)
    return GpuSample(
        t=t,
        run=run,
        host=host,
        gpu=gpu.gpu,
        util=gpu.util,
        mem_used=gpu.mem_used,
        mem_total=gpu.mem_total,
        temp_c=gpu.temp_c,
        power_w=gpu.power_w,
        rank=UNSET if gpu.rank is None else gpu.rank,
        name=gpu.name or "",
        uuid=gpu.uuid or "",
        mig=gpu.mig if isinstance(gpu.mig, str) else None,
        sm_clock_mhz=gpu.sm_clock_mhz,
        mem_clock_mhz=gpu.mem_clock_mhz,
        throttle=tuple(reason for reason in throttle if reason),
        ecc_uncorrected=gpu.ecc_uncorrected,
        pcie_rx_s=gpu.pcie_rx_s,
        pcie_tx_s=gpu.pcie_tx_s,
        nvlink_rx_s=gpu.nvlink_rx_s,
        nvlink_tx_s=gpu.nvlink_tx_s,
        strangers=_strangers(gpu.processes or ()),
    )


def _strangers(processes: Sequence[GpuProcess]) -> tuple[str, ...]:
    found = [
        f"{process.pid} {process.user or '?'} {process.command or '?'}"
        for process in processes
        if process.rank is None
    ]
    return tuple(found[:MAX_STRANGERS])
