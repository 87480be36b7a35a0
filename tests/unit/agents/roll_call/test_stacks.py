"""Stacks as faulthandler, py-spy and Python 3.14 and 3.15 have written them."""

import json

import pytest

from distconsole_agent.roll_call.stacks import (
    MAX_FRAMES,
    ends_early,
    parse_faulthandler,
    parse_py_spy,
    parse_python,
)

OF_TWO_THREADS = """\
Current thread 0x00007f487b7fe6c0 (most recent call first):
  <no Python frame>

Thread 0x00007f48a1111b80 [pin memory] (most recent call first):
  File "/usr/lib/python3.14/queue.py", line 199 in get

Thread 0x00007f48a403fb80 (most recent call first):
  File "/home/u/data set/data.py", line 31 in load_image
  File "/tmp/hook-1/distconsole_training/torch_hook/wrapped_calls.py", line 155 in backward
  File "/home/u/train.py", line ??? in <lambda>
  ...
"""


def test_the_main_thread_is_the_last_of_faulthandlers_and_the_first_of_ours() -> None:
    main, other = parse_faulthandler(OF_TWO_THREADS)
    assert (main["main"], other["main"], other["name"]) == (True, False, "pin memory")
    assert main["frames"] == [
        {"function": "load_image", "file": "/home/u/data set/data.py", "line": 31},
        {"function": "<lambda>", "file": "/home/u/train.py", "line": 0},
    ]


def test_a_dump_that_ends_before_the_main_thread_is_no_answer() -> None:
    pool = 'Thread 0x1 (most recent call first):\n  File "pool.py", line 3 in work\n\n'
    with pytest.raises(ValueError, match="not the main one"):
        parse_faulthandler(pool * 100 + "...\n")


def test_a_deep_recursion_keeps_its_innermost_frames() -> None:
    frames = "".join(f'  File "a.py", line {n} in f\n' for n in range(1, 101))
    (main,) = parse_faulthandler(f"Thread 0x1 (most recent call first):\n{frames}")
    assert [frame["line"] for frame in main["frames"]] == list(range(1, MAX_FRAMES + 1))


def test_py_spys_main_thread_is_that_of_the_process() -> None:
    def thread(tid: int, name: str) -> dict[str, object]:
        frames = [{"name": "f", "filename": "/a.py", "line": 3, "locals": [{"secret": 1}]}]
        return {"os_thread_id": tid, "thread_name": name, "frames": frames}

    told = json.dumps([thread(8, "waiter"), thread(7, "MainThread")])
    main, other = parse_py_spy(told, 7)
    assert (main["tid"], main["main"], other["name"]) == (7, True, "waiter")
    assert main["frames"] == [{"function": "f", "file": "/a.py", "line": 3}]


@pytest.mark.parametrize("text", ["", "[1]", '{"a": 1}'])
def test_what_is_no_dump_of_py_spy_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_py_spy(text, 7)


BY_3_15_2 = """[[29, [["in_thread", "/why/target.py", 3], ["Thread.run", "/usr/lib/python3.15/threading.py", 1161], ["Thread._bootstrap_inner", "/usr/lib/python3.15/threading.py", 1219], ["Thread._bootstrap", "/usr/lib/python3.15/threading.py", 1181]]], [27, [["load.<locals>.load_image", "/why/target.py", 6], ["main", "/why/target.py", 9], ["<module>", "/why/target.py", 10]]]]"""
BY_3_14_10 = (
    """[[17, [["M.forward", "/tmp/target.py", 6], ["M.__call__", "/tmp/target.py", 3]]]]"""
)
"""Of ``list(map(f, [1]))``, whose ``f`` calls the object: Python 3.15.2 also shows the three frames below."""


def test_pythons_own_main_thread_is_that_of_the_process() -> None:
    main, other = parse_python(BY_3_15_2, 27)
    assert (main["tid"], main["main"], other["tid"], other["main"]) == (27, True, 29, False)
    assert main["frames"][0] == {"function": "load_image", "file": "/why/target.py", "line": 6}
    assert [frame["function"] for frame in other["frames"]][:2] == ["in_thread", "run"]
    assert not ends_early([main, other])


def test_a_stack_that_does_not_begin_with_a_module_lacks_its_outer_calls() -> None:
    threads = parse_python(BY_3_14_10, 17)
    assert [frame["function"] for frame in threads[0]["frames"]] == ["forward", "__call__"]
    assert ends_early(threads)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        "[1]",
        "[[1, [[2]]]]",
        "[[1e999, []]]",
        '[[7, [["f", "/a.py", -1]]]]',
        "[" * 100_000,
    ],
)
def test_what_are_no_stacks_of_python_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_python(text, 7)
