"""What NVIDIA's Xid numbers mean and what to do about each. Values only.

Source: NVIDIA, "Xid Errors" (docs.nvidia.com/deploy/xid-errors), in our words.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Remedy(StrEnum):
    """Who has something to do."""

    PROGRAM = "look at the program: it did something that the GPU refused"
    RESET = "end what uses the GPU, then: sudo nvidia-smi --gpu-reset -i GPU, or reboot"
    REBOOT = "reboot the host; where it comes again, reseat or replace the GPU"
    REPLACE = "drain the host and have the GPU replaced: dcgmi diag -r 3 gives the evidence"
    WATCH = "nothing yet; where it comes again, dcgmi diag -r 3"


@dataclass(frozen=True, slots=True)
class Xid:
    """One number."""

    meaning: str
    remedy: Remedy

    @property
    def hardware(self) -> bool:
        """Whether the host should get no job before somebody has done something."""
        return self.remedy not in (Remedy.PROGRAM, Remedy.WATCH)


XIDS: dict[int, Xid] = {
    13: Xid("an exception in a kernel, as by an access out of bounds", Remedy.PROGRAM),
    31: Xid("a GPU page fault: an illegal address in a kernel", Remedy.PROGRAM),
    43: Xid("the GPU stopped processing for a program", Remedy.PROGRAM),
    45: Xid("a program was ended while the GPU worked for it", Remedy.PROGRAM),
    48: Xid("an uncorrectable memory error", Remedy.RESET),
    61: Xid("its microcontroller halted", Remedy.RESET),
    62: Xid("its microcontroller halted", Remedy.RESET),
    63: Xid("a row of its memory is to be remapped at the next reset", Remedy.RESET),
    64: Xid("a row of its memory could not be remapped", Remedy.REPLACE),
    69: Xid("an exception in a kernel", Remedy.PROGRAM),
    74: Xid("an error of an NVLink", Remedy.RESET),
    79: Xid("the GPU fell off the bus", Remedy.REBOOT),
    92: Xid("many corrected memory errors", Remedy.WATCH),
    94: Xid("an uncorrectable memory error that ended one program only", Remedy.RESET),
    95: Xid("an uncorrectable memory error that may have spoilt others' memory", Remedy.REBOOT),
    110: Xid("a security fault", Remedy.REBOOT),
    119: Xid("its system processor (GSP) does not answer", Remedy.REBOOT),
    120: Xid("its system processor (GSP) failed", Remedy.REBOOT),
    121: Xid("a corrected error of the link to the processor", Remedy.WATCH),
    136: Xid("a link of the fabric failed in training", Remedy.RESET),
    140: Xid("an uncorrectable error that was not contained", Remedy.REBOOT),
    143: Xid("its initialisation failed", Remedy.REBOOT),
}
UNKNOWN = Xid("see NVIDIA's table of Xid errors", Remedy.WATCH)


def xid(number: int | None) -> Xid:
    """Return what is known of a number."""
    return XIDS.get(number or 0, UNKNOWN)
