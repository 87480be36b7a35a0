"""The few calls of CUDA's driver API that copies need, by ctypes (names and codes: NVIDIA's ``cuda.h``)."""

from __future__ import annotations

import ctypes
from typing import Any

LIBRARY = "libcuda.so.1"
NOT_VISIBLE = (100, 101)
"""CUDA_ERROR_NO_DEVICE and _INVALID_DEVICE: CUDA_VISIBLE_DEVICES or a control group hides it."""

_NOT_READY = 600
_PEER_ACCESS_ALREADY_ENABLED = 704
_NON_BLOCKING = 1

_int, _size, _flags, _at = ctypes.c_int, ctypes.c_size_t, ctypes.c_uint, ctypes.c_void_p
_memory = ctypes.c_uint64
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (_flags,),
    "cuGetErrorName": (_int, ctypes.POINTER(ctypes.c_char_p)),
    "cuDeviceGetByPCIBusId": (ctypes.POINTER(_int), ctypes.c_char_p),
    "cuDevicePrimaryCtxRetain": (ctypes.POINTER(_at), _int),
    "cuDevicePrimaryCtxRelease_v2": (_int,),
    "cuCtxSetCurrent": (_at,),
    "cuCtxEnablePeerAccess": (_at, _flags),
    "cuDeviceCanAccessPeer": (ctypes.POINTER(_int), _int, _int),
    "cuMemAlloc_v2": (ctypes.POINTER(_memory), _size),
    "cuMemFree_v2": (_memory,),
    "cuMemHostAlloc": (ctypes.POINTER(_at), _size, _flags),
    "cuMemFreeHost": (_at,),
    "cuStreamCreate": (ctypes.POINTER(_at), _flags),
    "cuStreamSynchronize": (_at,),
    "cuStreamDestroy_v2": (_at,),
    "cuEventCreate": (ctypes.POINTER(_at), _flags),
    "cuEventDestroy_v2": (_at,),
    "cuEventRecord": (_at, _at),
    "cuEventQuery": (_at,),
    "cuEventElapsedTime": (ctypes.POINTER(ctypes.c_float), _at, _at),
    "cuMemcpyHtoDAsync_v2": (_memory, _at, _size, _at),
    "cuMemcpyDtoHAsync_v2": (_at, _memory, _size, _at),
    "cuMemcpyPeerAsync": (_memory, _at, _memory, _at, _size, _at),
}


class CudaError(Exception):
    """CUDA refused a call; ``code`` is its CUresult."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call}: {name or 'error'} ({code})")
        self.code = code


class Cuda:
    """CUDA's driver, initialised. Raises OSError without it, CudaError if it does not start."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(LIBRARY)
        try:
            for name, types in _SIGNATURES.items():
                getattr(self._library, name).argtypes = types
        except AttributeError as error:
            raise OSError(f"{LIBRARY} is of before CUDA 11: {error}") from None
        self.call("cuInit", 0)

    def call(self, name: str, *args: Any, well: tuple[int, ...] = (0,)) -> int:
        """Return the code of a call, one of ``well``. Raises CudaError for any other."""
        code = self.attempt(name, *args)
        if code not in well:
            raise CudaError(name, code, self._name(code))
        return code

    def attempt(self, name: str, *args: Any) -> int:
        return int(getattr(self._library, name)(*args))

    def _name(self, code: int) -> str:
        text = ctypes.c_char_p()
        self._library.cuGetErrorName(code, ctypes.byref(text))
        return (text.value or b"").decode("ascii", "replace")


class Copier:
    """A GPU with a stream, a buffer of ``size`` bytes on it, and one in pinned memory of the host.

    Raises CudaError if CUDA does not see it (``NOT_VISIBLE``), or refuses.
    """

    def __init__(self, cuda: Cuda, bus_id: str, size: int) -> None:
        self._cuda = cuda
        device = _int()
        cuda.call("cuDeviceGetByPCIBusId", ctypes.byref(device), bus_id.encode("ascii"))
        self.device = device.value
        self.context, self._stream, self._host = _at(), _at(), _at()
        self._began, self._ended, self.memory = _at(), _at(), _memory()
        cuda.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), self.device)
        try:
            self.use()
            cuda.call("cuStreamCreate", ctypes.byref(self._stream), _NON_BLOCKING)
            for event in (self._began, self._ended):
                cuda.call("cuEventCreate", ctypes.byref(event), 0)
            cuda.call("cuMemAlloc_v2", ctypes.byref(self.memory), size)
            cuda.call("cuMemHostAlloc", ctypes.byref(self._host), size, 0)
        except CudaError:
            self.close()
            raise

    def use(self) -> None:
        """Make it the GPU of this thread's calls."""
        self._cuda.call("cuCtxSetCurrent", self.context)

    def to_device(self, size: int, times: int) -> None:
        self._timed("cuMemcpyHtoDAsync_v2", times, self.memory, self._host, size)

    def from_device(self, size: int, times: int) -> None:
        self._timed("cuMemcpyDtoHAsync_v2", times, self._host, self.memory, size)

    def to_peer(self, peer: Copier, size: int, times: int) -> None:
        words = (peer.memory, peer.context, self.memory, self.context, size)
        self._timed("cuMemcpyPeerAsync", times, *words)

    def reach(self, peer: Copier) -> bool:
        """Let it write to another GPU by itself; False if it cannot."""
        can = _int()
        self._cuda.call("cuDeviceCanAccessPeer", ctypes.byref(can), self.device, peer.device)
        if can.value:
            self.use()
            well = (0, _PEER_ACCESS_ALREADY_ENABLED)
            self._cuda.call("cuCtxEnablePeerAccess", peer.context, 0, well=well)
        return bool(can.value)

    def done(self) -> bool:
        return self._cuda.call("cuEventQuery", self._ended, well=(0, _NOT_READY)) == 0

    def seconds(self) -> float:
        """Return the duration of the last work on the GPU."""
        milliseconds = ctypes.c_float()
        self._cuda.call("cuEventElapsedTime", ctypes.byref(milliseconds), self._began, self._ended)
        return milliseconds.value / 1e3

    def close(self) -> None:
        """Give everything back; CUDA's errors do not matter any more."""
        for name, what in (
            ("cuCtxSetCurrent", self.context),
            ("cuStreamSynchronize", self._stream),
            ("cuMemFreeHost", self._host),
            ("cuMemFree_v2", self.memory),
            ("cuEventDestroy_v2", self._began),
            ("cuEventDestroy_v2", self._ended),
            ("cuStreamDestroy_v2", self._stream),
        ):
            if what.value:
                self._cuda.attempt(name, what)
        self._cuda.attempt("cuDevicePrimaryCtxRelease_v2", self.device)

    def _timed(self, name: str, times: int, *args: Any) -> None:
        self.use()
        self._cuda.call("cuEventRecord", self._began, self._stream)
        for _ in range(times):
            self._cuda.call(name, *args, self._stream)
        self._cuda.call("cuEventRecord", self._ended, self._stream)
