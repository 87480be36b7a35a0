"""Which files are the script's own, and what those of libraries say of a rank."""

from __future__ import annotations

import msgspec
import pytest

from distconsole.model.diagnosis.calls import Call
from distconsole.runs.diagnosis.stacks import Does, is_library, waits_for_lock, what_it_does


@pytest.mark.parametrize(
    "file",
    [
        "/tmp/distconsole-0/runs/r-1/code/train.py",
        "/home/me/distconsole/examples/train.py",
        "/home/me/distconsole_training/2026/may/train.py",
    ],
)
def test_a_script_is_its_own_in_a_folder_with_our_name(file: str) -> None:
    assert not is_library(file)


@pytest.mark.parametrize(
    "file",
    [
        "/usr/lib/python3.13t/threading.py",
        "/tmp/distconsole-0/hook-0af3/distconsole_training/process.py",
        "/tmp/distconsole-0/hook-0af3/distconsole_training/torch_hook/torch_steps.py",
        "/venv/lib/python3.11/site-packages/distconsole_training/recipes/digits.py",
    ],
)
def test_the_hook_is_a_library(file: str) -> None:
    assert is_library(file)


TORCH = "/opt/venv/lib/python3.12/site-packages/torch"
OWN = ("step", "/home/me/train.py")
IMPORT = ("_find_and_load", "<frozen importlib._bootstrap>")


def does(*frames: tuple[str, str]) -> Does:
    return what_it_does(call_with([*frames, OWN, ("<module>", "/home/me/train.py")]))


def call_with(frames: list[tuple[str, str]]) -> Call:
    places = [{"function": function, "file": file, "line": 1} for function, file in frames]
    told = {"rank": 0, "alive": True, "threads": [{"main": True, "frames": places}]}
    return msgspec.convert(told, Call)


@pytest.mark.parametrize(
    ("frames", "meant"),
    [
        ([("<module>", f"{TORCH}/_dynamo/trace_rules.py"), IMPORT], Does.IMPORTS),
        ([("<module>", f"{TORCH}/distributed/tensor/__init__.py"), IMPORT], Does.IMPORTS),
        ([("<module>", "/usr/lib/python3.12/pdb.py"), IMPORT], Does.IMPORTS),
        ([("_compile", f"{TORCH}/_dynamo/convert_frame.py")], Does.COMPILES),
        (
            [("f", f"{TORCH}/_inductor/ir.py"), IMPORT, ("f", f"{TORCH}/_inductor/compile_fx.py")],
            Does.COMPILES,
        ),
        (
            [
                ("call", "/tmp/torchinductor_me/ab/cab.py"),
                ("__call__", f"{TORCH}/_inductor/output_code.py"),
                ("runtime_wrapper", f"{TORCH}/_functorch/_aot_autograd/runtime_wrappers.py"),
                ("_fn", f"{TORCH}/_dynamo/eval_frame.py"),
            ],
            Does.OTHER,
        ),
        ([("vmap_impl", f"{TORCH}/_functorch/vmap.py")], Does.OTHER),
        ([("_load", f"{TORCH}/serialization.py")], Does.OTHER),
        ([("_save", f"{TORCH}/serialization.py")], Does.SAVES),
        ([("load_file", "/usr/lib/python3/dist-packages/safetensors/torch.py")], Does.OTHER),
        ([("__getitem__", "/v/site-packages/h5py/_hl/dataset.py")], Does.OTHER),
        ([("create_dataset", "/v/site-packages/h5py/_hl/group.py")], Does.SAVES),
        (
            [("__call__", f"{TORCH}/_ops.py"), ("dispatch", f"{TORCH}/distributed/tensor/_dispatch.py")],
            Does.OTHER,
        ),
        (
            [("wait_tensor", f"{TORCH}/distributed/_functional_collectives.py")],
            Does.WAITS,
        ),
        ([("shutdown", "/usr/lib/python3.12/concurrent/futures/thread.py")], Does.OTHER),
        ([("shutdown", "/v/site-packages/horovod/common/basics.py")], Does.LEAVES),
        ([("interaction", "/usr/lib/python3.12/pdb.py")], Does.DEBUGS),
        ([("interaction", "/opt/lib/python3.14t/pdb.py")], Does.DEBUGS),
        ([("read", "/home/me/pdb/reader.py")], Does.OTHER),
        ([("shutdown", "/home/me/pool.py")], Does.OTHER),
    ],
)  # fmt: skip
def test_a_file_of_a_library_says_what_a_rank_does_only_by_what_runs_there(
    frames: list[tuple[str, str]], meant: Does
) -> None:
    assert does(*frames) is meant


PACKAGE = ("<module>", "/v/site-packages/package/train.py")
REDUCE = ("all_reduce", f"{TORCH}/distributed/distributed_c10d.py")
RUN = [
    IMPORT,
    ("<module>", "/v/site-packages/package/__main__.py"),
    ("_run_code", "<frozen runpy>"),
]


@pytest.mark.parametrize(
    ("frames", "meant"),
    [
        ([REDUCE, PACKAGE], Does.WAITS),
        ([("forward", f"{TORCH}/nn/modules/linear.py")] * 8 + [PACKAGE], Does.OTHER),
        ([PACKAGE], Does.IMPORTS),
        ([("<module>", f"{TORCH}/nn/__init__.py"), IMPORT, PACKAGE], Does.IMPORTS),
        (
            [("f", REDUCE[1]), ("<module>", f"{TORCH}/distributed/tensor/__init__.py"), IMPORT, PACKAGE],
            Does.IMPORTS,
        ),
    ],
)  # fmt: skip
def test_a_program_without_a_file_of_its_own_may_train_inside_an_import(
    frames: list[tuple[str, str]], meant: Does
) -> None:
    assert what_it_does(call_with([*frames, *RUN])) is meant


def test_a_module_of_the_scripts_with_a_librarys_name_is_no_lock() -> None:
    assert not waits_for_lock(call_with([("take", "/home/me/queue.py")]).frames)
