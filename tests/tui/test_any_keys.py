"""Any keys, lines, sizes and moments, while any run, check or cluster is told: the screen stands, and none takes it long.

A seed is a session. ``python tests/tui/test_any_keys.py --seconds 600 [--first SEED]`` goes on from seed to seed.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import count, islice
from pathlib import Path

import pytest

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from textual.pilot import Pilot

from distconsole.errors import NodeError, PlanError
from distconsole.model import requests as ask
from distconsole.model.events import Event
from distconsole.rpc import frames, wire
from distconsole.runs.reduce import RunReducer
from distconsole.tui.app import ConsoleApp
from distconsole.tui.prompt.input import Prompt
from distconsole.tui.prompt.keys import KEYS, REPLAY_KEYS, SCREEN_VERBS, VIEWS
from distconsole.tui.view_models.hosts import Clocks
from fakes import scenes
from fakes.any_entry import any_entries
from fakes.stage import CONSOLE, Scene, Stage, on_screen, screen_text
from suite.seeds import seeds

pytestmark = pytest.mark.usefixtures("utc", "home", "colours")

STEPS = 40
LONGEST_SECONDS = 3.0
"""Of a processor, for what one step asks of the screen."""
SIZES = ((80, 24), (80, 24), (58, 14), (60, 15), (20, 5), (120, 36), (160, 50), (300, 100), (1, 1))
NAMES = (
    *("up", "down", "left", "right", "home", "end", "pageup", "pagedown", "tab", "shift+tab"),
    *("enter", "enter", "escape", "space", "backspace", "delete", "ctrl+c", "ctrl+d", "ctrl+r"),
    *(
        "ctrl+l",
        "ctrl+u",
        "ctrl+w",
        "ctrl+z",
        "j",
        "k",
        "g",
        "G",
        "1",
        "9",
        "y",
        "Z",
        "b",
        "full_stop",
    ),
)
KEY_NAMES = (*NAMES, *(key.key for key in (*KEYS, *REPLAY_KEYS)))
WORDS = (
    *(
        scenes.RUN,
        "last",
        "digits",
        "node1",
        "0",
        "-1",
        "9" * 30,
        "nan",
        "²",
        "ms",
        "loss",
        "up",
        "host",
        "util",
    ),
    *(
        "rank",
        "err",
        "/loss/",
        "loss 0.1",
        "[b]",
        "\x1b[31m",
        "train.py",
        "--hosts",
        "-",
        "'",
        "+5s",
        "-1s",
        "start",
    ),
    *(
        "next",
        "all",
        "toggle",
        "digits-1121-000",
        "?",
        "*",
        "--json",
        "state:failed",
        "rank:1",
        "ms>20",
        "a=b",
    ),
)
VERBS = (
    *SCREEN_VERBS,
    *(f"view {view}" for view in VIEWS),
    *(
        "attach",
        "run",
        "check",
        "stop",
        "logs",
        "show",
        "runs",
        "compare",
        "replay",
        "why",
        "top",
        "demo",
        "theme",
    ),
    *(
        "jobs",
        "cancel",
        "save",
        "back",
        "help",
        "lines",
        "heat",
        "plots",
        "axis",
        "mark",
        "open",
        "pairs",
        "at",
        "play",
    ),
)
STORIES: tuple[Scene, ...] = (
    scenes.training, scenes.straggling, scenes.restarting, scenes.failing, scenes.stalled, scenes.hung,
    scenes.host_lost, scenes.succeeded, scenes.starting, scenes.talking, partial(scenes.large, 64, slow=62),
    partial(scenes.training, 1), partial(scenes.failing, 2),
)  # fmt: skip


def refused() -> Iterator[Event]:
    raise PlanError("--nnodes 3 means 3 hosts, and there are 2", "give --hosts")
    yield


def hostile(seed: int) -> Iterator[Event]:
    """What a console makes of entries that have anything in them."""
    reducer = RunReducer(scenes.RUN, ("n0", "n1"))
    for host, entry in any_entries(random.Random(seed), 60):
        try:
            item = wire.check_item("follow", json.loads(json.dumps({"entries": [entry]})))
            known = wire.decode_as(item, frames.Entries).entries
        except NodeError:
            continue
        for each in known:
            yield from reducer.feed(host, each, each.t)


def part_of(scene: Scene, dice: random.Random) -> Scene:
    """Return a scene of which only the beginning is told, in its own time."""
    seed, most = dice.random(), dice.choice((0, 1, 2, 5, 20, 10**9))

    def told() -> Iterable[Event]:
        chance = random.Random(seed)
        for event in islice(scene(), most):
            if chance.random() < 0.02:
                time.sleep(0.01)
            yield event

    return told


def answers(dice: random.Random) -> Mapping[type, Scene]:
    """Return what each request of a session is answered."""

    def any_story() -> Scene:
        story = (
            partial(hostile, dice.randrange(10**6))
            if dice.random() < 0.25
            else dice.choice(STORIES)
        )
        return part_of(story, dice)

    run = any_story()
    kinds: dict[type, Scene] = {
        ask.Attach: run,
        ask.Run: dice.choice((run, refused)),
        ask.Demo: run,
        ask.Top: part_of(
            partial(scenes.hosts, dice.choice((1, 2, 8)), dice.choice((0, 4, 8))), dice
        ),
        ask.Check: part_of(dice.choice((scenes.checked, partial(scenes.paired, dead=1))), dice),
        ask.Runs: part_of(scenes.past_runs, dice),
        ask.Compare: dice.choice((scenes.compared, refused)),
        ask.Foresee: part_of(scenes.foreseen, dice),
        ask.Launches: part_of(scenes.launches, dice),
    }
    return {kind: scene for kind, scene in kinds.items() if dice.random() < 0.9}


async def take_step(
    app: ConsoleApp, pilot: Pilot[int], dice: random.Random, ago: list[float]
) -> str:
    """Do something to the screen; return what."""
    what = dice.random()
    if what < 0.6:
        key = dice.choice(KEY_NAMES)
        await pilot.press(key)
        return f"press {key}"
    if what < 0.85:
        words = (dice.choice(WORDS) for _ in range(dice.choice((0, 0, 1, 1, 2))))
        line = " ".join((dice.choice(VERBS), *words))
        if dice.random() < 0.5:
            app.main.run_command(line, quiet=True)
        else:
            app.query_one(Prompt).offer(line)
            await pilot.press("enter")
        return line
    if what < 0.95:
        size = dice.choice(SIZES)
        await pilot.resize_terminal(*size)
        return f"resize {size}"
    ago[0] += dice.choice((0.5, 3.0, 31.0, 4000.0, -3600.0))
    await pilot.pause(0.02)
    return f"at {ago[0]}"


async def play(seed: int) -> None:
    """Go through the session of a seed.

    Raises:
        AssertionError: a step took too long; what the screen raises comes as it is.
    """
    dice = random.Random(seed)
    ago, stage, done = [0.0], Stage(answers(dice)), list[str]()
    clocks = Clocks(
        unix=lambda: scenes.MINUTE_LATER + ago[0], monotonic=lambda: 1000.0 + max(0.0, ago[0])
    )
    request = dice.choice((CONSOLE, ask.OpenConsole(), ask.Attach(run=scenes.RUN)))
    app = ConsoleApp(request, None, clocks, stage)
    try:
        async with on_screen(app, stage, dice.choice(SIZES)) as pilot:
            for _ in range(STEPS):
                began = time.thread_time()
                done.append(await take_step(app, pilot, dice, ago))
                if not app.is_running or app.return_code is not None:
                    break
                app.main.redraw()
                await pilot.pause()
                took = time.thread_time() - began
                assert took < LONGEST_SECONDS, f"{took:.1f} s of a processor\n{screen_text(app)}"
    except BaseException as error:
        error.add_note(f"seed {seed}: {'; '.join(done)}")
        raise


@pytest.mark.parametrize("seed", seeds(4, always=2))
async def test_any_keys_leave_the_screen_standing(
    seed: int, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    await play(seed)


def main() -> int:
    parser = argparse.ArgumentParser(prog="test_any_keys")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--first", type=int, default=0)
    asked = parser.parse_args()
    until, wrong = time.monotonic() + asked.seconds, 0
    for seed in count(asked.first):
        if time.monotonic() > until:
            print(f"{seed - asked.first} sessions, {wrong} wrong")
            return int(wrong > 0)
        with tempfile.TemporaryDirectory() as folder:
            os.environ["HOME"] = folder
            os.chdir(folder)
            try:
                asyncio.run(play(seed))
            except Exception as error:  # noqa: BLE001 - what is raised is what is looked for
                wrong += 1
                print("".join(traceback.format_exception(error, limit=-6))[-6000:], flush=True)
            os.chdir("/")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
