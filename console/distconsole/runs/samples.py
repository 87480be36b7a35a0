"""A node's load, and a rank's window, as events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter

from msgspec import UNSET, structs

from distconsole.expression.parts import finite
from distconsole.model.run_events import BusyProcess, GpuSample, NodeSample, Window
from distconsole.rpc import frames
from distconsole.rpc.frames import GpuLoad, NodeLoad
from distconsole.runs.figures import GPU_FIGURES, PARTS

MAX_STRANGERS = 16
_NAMES = tuple(figure.field for figure in GPU_FIGURES)
_FIGURES, _parts_of = attrgetter(*_NAMES), attrgetter(*PARTS)


def load_events(
    run: str,
    host: str,
    node: NodeLoad | None,
    gpus: Sequence[GpuLoad],
    t: float,
    processes: Sequence[frames.ProcessLoad] | None = None,
) -> Iterator[NodeSample | GpuSample]:
    """Yield the node's load, None if psutil is missing, and that of each of its GPUs.

    ``run`` is empty for ``top``; ``t`` in UNIX seconds on the console's clock.
    """
    if node is not None:
        busy = tuple(BusyProcess(**structs.asdict(each)) for each in processes or ())
        told = UNSET if processes is None else busy
        yield NodeSample(t=t, run=run, host=host, **structs.asdict(node), processes=told)
    for gpu in gpus:
        yield _gpu_event(run, host, gpu, t)


def _gpu_event(run: str, host: str, gpu: GpuLoad, t: float) -> GpuSample:
    throttle = gpu.throttle if isinstance(gpu.throttle, tuple) else (gpu.throttle,)
    processes = gpu.processes or ()
    found = [
        f"{process.pid} {process.user or '?'} {process.command or '?'}"
        for process in processes
        if process.rank is None
    ]
    return GpuSample(
        t=t,
        run=run,
        host=host,
        gpu=gpu.gpu,
        rank=UNSET if gpu.rank is None else gpu.rank,
        name=gpu.name or "",
        uuid=gpu.uuid or "",
        mig=gpu.mig if isinstance(gpu.mig, str) else None,
        throttle=tuple(reason for reason in throttle if reason),
        strangers=tuple(found[:MAX_STRANGERS]),
        pcie=gpu.pcie,
        xid=gpu.xid,
        **dict(zip(_NAMES, _FIGURES(gpu), strict=True)),
    )


def window_event(run: str, host: str, entry: frames.WindowEntry, step: int, t: float) -> Window:
    mean, p95 = map(finite, entry.step_ms or (None, None))
    return Window(
        t=t,
        run=run,
        rank=entry.rank,
        step=step,
        steps=entry.steps,
        step_ms_mean=mean,
        step_ms_p95=p95,
        metrics={k: value for k, value in entry.metrics.items() if value is not None},
        dropped=entry.dropped,
        host=host,
        skipped=entry.skipped,
        waited_ms=waited_of(entry.waited_ms),
        workers=entry.workers,
        samples_s=finite(entry.samples_s),
        unit="batches" if entry.batches else UNSET,
        cpu_wait=finite(entry.cpu_wait),
        disk_wait=finite(entry.disk_wait),
        **dict(zip(PARTS, map(finite, _parts_of(entry)), strict=True)),
    )


def waited_of(values: frames.Waited | None) -> tuple[float, float, float, float, float] | None:
    """Return the five waits of a step; None if one is unknown."""
    if values is None:
        return None
    step, data, forward, backward, optimizer = map(finite, values)
    if step is None or data is None or forward is None or backward is None or optimizer is None:
        return None
    return step, data, forward, backward, optimizer
