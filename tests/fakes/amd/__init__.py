"""The stand-in libamd_smi and the sysfs beside it: built from C, put in front of a program, steered by a file."""

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

from fakes.nvml import compiler

SOURCE = Path(__file__).with_name("fake_amd.c")
LIBRARY = "libamd_smi.so"
CONTROL_VARIABLE = "FAKE_AMD_CONTROL"


def build() -> Path:
    """Return the folder of the built library; raises RuntimeError without a C compiler."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"distconsole-fake-amd-{os.getuid()}-{digest}"
    cc = compiler()
    if cc is None:
        raise RuntimeError("no C compiler")
    if not (folder / LIBRARY).exists():
        folder.mkdir(mode=0o700, exist_ok=True)
        aside = folder / f"{LIBRARY}.{os.getpid()}"
        flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden"]
        # Without a soname, so that what other tests open by its name is not this one.
        subprocess.run([cc, *flags, "-o", str(aside), str(SOURCE)], check=True)
        aside.rename(folder / LIBRARY)
    return folder


class FakeAmd:
    """The values of one control file, and a sysfs with the cards' links and processes in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.control, self.sysfs = folder / "amd.txt", folder / "sys"
        self._values: dict[str, int] = {}
        for index in range(2):
            self._lay_out(index)
        self.set("gpus", 2)

    def environment(self) -> dict[str, str]:
        """Return the variables that put this library in front of a program to be started."""
        return {"LD_LIBRARY_PATH": str(build()), CONTROL_VARIABLE: str(self.control)}

    def set(self, name: str, value: int) -> None:
        """Set a value (``util.1``), or an error (``fail.amdsmi_get_clock_info``)."""
        self._values[name] = value
        lines = (f"{name} {value}\n" for name, value in self._values.items())
        aside = self.control.with_suffix(".new")
        aside.write_text("".join(lines))
        aside.rename(self.control)

    def compute(self, pid: int, gpu: int, used: int) -> None:
        """Let a process hold memory of a GPU."""
        self._write(f"class/kfd/kfd/proc/{pid}/vram_{51200 + gpu}", used)

    def _lay_out(self, index: int) -> None:
        node, place = f"class/kfd/kfd/topology/nodes/{index + 1}", 0xC100 + (index << 8)
        self._write(f"{node}/properties", f"cpu_cores_count 0\nlocation_id {place}\ndomain 0")
        self._write(f"{node}/gpu_id", 51200 + index)
        card = f"bus/pci/devices/0000:{place >> 8:02x}:00.0"
        self._write(f"{card}/current_link_width", 16 if index == 0 else 8)
        self._write(f"{card}/max_link_width", 16)
        self._write(f"{card}/current_link_speed", "16.0 GT/s PCIe")
        self._write(f"{card}/max_link_speed", "32.0 GT/s PCIe")
        self._write("module/amdgpu/version", "6.12.12")

    def _write(self, name: str, value: object) -> None:
        path = self.sysfs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")
