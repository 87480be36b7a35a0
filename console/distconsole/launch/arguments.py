"""What a launcher adds to the script's own arguments, in the script's own spelling. Pure."""

from __future__ import annotations

from typing import NamedTuple

from distconsole.launch.job import PORT, Job
from distconsole.model.requests import PassArgs


class Place(NamedTuple):
    """One process among those that meet: ranks, or nodes where each starts its own ranks."""

    rank: int
    world_size: int
    local_rank: int = 0


def added_arguments(job: Job, place: Place) -> tuple[str, ...]:
    """Return the words to add for the process at ``place``; none without ``--pass-args``.

    Those of platforms: ``--init_method tcp://… --rank R --world_size N``. Those of
    ``torch.distributed.launch``: ``--local_rank=R``.
    """
    spelled = job.spelling.get
    match job.pass_args:
        case None:
            return ()
        case PassArgs.TORCH_LAUNCH:
            return (f"{spelled('local_rank') or '--local_rank'}={place.local_rank}",)
        case PassArgs.INIT_METHOD:
            address = job.master.endpoint.address
            host = f"[{address}]" if ":" in address else address
            pairs = (
                (spelled("init_method") or "--init_method", f"tcp://{host}:{PORT}"),
                (spelled("rank") or "--rank", str(place.rank)),
                (spelled("world_size") or "--world_size", str(place.world_size)),
            )
            # What the user gives stands, such as file:// on a folder that all nodes share.
            missing = (pair for pair in pairs if not is_given(pair[0], job.arguments))
            return tuple(word for pair in missing for word in pair)


def is_given(option: str, arguments: tuple[str, ...]) -> bool:
    """Whether the user's own arguments have ``option``."""
    return any(word == option or word.startswith(f"{option}=") for word in arguments)
