"""Real scripts with real torch: what the ring says is what the script did, or nothing."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from distconsole_training.records import BATCH, LOSS, MICRO, SKIPPED

if TYPE_CHECKING:
    from conftest import Outcome, RingFile, Runner

PREAMBLE = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
data = TensorDataset(torch.randn(12, 4), torch.randn(12, 1))
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def loss_of(batch, scale=1.0):
    return ((model(batch[0]) - batch[1]) ** 2).mean() * scale
"""

pytestmark = pytest.mark.usefixtures("warm")


def run(
    runner: Runner, body: str, *, fresh: bool = False, **more: Any
) -> tuple[Outcome, RingFile]:
    """Run the script; what it prints on a line as numbers is what it knows of itself.

    Args:
        runner: Starts it.
        body: What follows the preamble.
        fresh: In an interpreter of its own, for what happens before the script has torch.
        more: For the runner.
    """
    start = runner.watched if fresh else runner.forked
    ended = start(PREAMBLE + body, **more)
    assert ended.code == 0, ended.err
    return ended, ended.ring


def printed(ended: Outcome) -> list[float]:
    return [float(word) for word in ended.out.split()]


def same(seen: list[float], wanted: list[float]) -> bool:
    return len(seen) == len(wanted) and all(
        (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=1e-5)
        for a, b in zip(seen, wanted, strict=True)
    )


def test_steps_samples_loss_and_times(runner: Runner) -> None:
    ended, ring = run(
        runner,
        """
for epoch in range(2):
    start = "fork" if epoch else None
    for batch in DataLoader(data, batch_size=5, num_workers=epoch, multiprocessing_context=start):
        optimizer.zero_grad()
        loss = loss_of(batch)
        loss.backward()
        optimizer.step()
        print(loss.item())
""",
        env={"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8"},
        fresh=True,
    )
    assert ring.column("step") == list(range(6))
    assert ring.column("samples") == [5, 5, 2] * 2
    assert same(ring.column("value"), printed(ended))
    assert ring.phases == ["interpreter", "import_torch", "first_step"]
    assert [ring.header[name] for name in ("rank", "local_rank", "world_size")] == [5, 1, 8]
    for step in ring.steps:
        parts = [step[name] for name in ("data", "forward", "backward", "optimizer")]
        assert all(part > 0 for part in parts)
        assert sum(parts) <= step["seconds"] * 1.0001
    ends = ring.column("time_ns")
    for before, after, seconds in zip(ends, ends[1:], ring.column("seconds")[1:], strict=False):
        assert math.isclose((after - before) / 1e9, seconds, rel_tol=1e-3)


MARKED = """
from distconsole_training import mark_step, report
for number in range(3):
    with mark_step(samples=4) as step:
        step.begin("data")
        step.begin("forward")
        TRAIN
        step.begin("optimizer")
        step.begin("forward")
        report(loss=number / 2)
    report(rest=number)
try:
    with mark_step():
        raise KeyError
except KeyError:
    pass
"""


@pytest.mark.parametrize("with_torch", [False, True])
def test_steps_marked_by_a_script_are_its_only_ones(with_torch: bool, runner: Runner) -> None:
    train = "loss_of(next(iter(DataLoader(data, batch_size=6)))).backward(); optimizer.step()"
    script = MARKED.replace("TRAIN", train if with_torch else "pass")
    if with_torch:
        ring = run(runner, script)[1]
    else:
        ring = runner.watched(script, env={"RANK": "1", "WORLD_SIZE": "2"}).ring
    assert ring.column("step") == [0, 1, 2]
    assert ring.column("samples") == [4, 4, 4]
    assert ring.metrics == [
        (name, step, value, 0)
        for step in range(3)
        for name, value in (("loss", step / 2), ("rest", step))
    ]
    for step in ring.steps:
        assert 0 < step["data"] + step["forward"] + step["optimizer"] <= step["seconds"]
        assert math.isnan(step["backward"])
    assert ring.is_alone is with_torch


def test_a_loss_that_is_nan_or_infinite_is_told_as_such(runner: Runner) -> None:
    _, ring = run(
        runner,
        """
for step, batch in enumerate(DataLoader(data, batch_size=2)):
    loss = loss_of(batch) * {2: float("inf"), 4: float("nan")}.get(step, 1.0)
    if step == 5:
        loss.backward(torch.ones_like(loss))  # a loss that is not looked at
    else:
        loss.backward()
    optimizer.zero_grad()
    optimizer.step()
""",
    )
    values = ring.column("value")
    assert [math.isfinite(value) for value in values] == [True, True, False, True, False, False]
    assert values[2] == math.inf
    told = [(row["step"], row["value"]) for row in ring.rows if row["kind"] == LOSS]
    assert [step for step, _ in told] == [4]
    assert math.isnan(told[0][1])


def test_evaluation_in_between_does_not_count(runner: Runner) -> None:
    _, ring = run(
        runner,
        """
import time
for epoch in range(2):
    for batch in DataLoader(data, batch_size=6):
        loss_of(batch).backward()
        optimizer.step()
    with torch.no_grad():
        for batch in DataLoader(data, batch_size=4):
            time.sleep(0.1)
            loss_of(batch)
""",
    )
    assert ring.column("samples") == [6, 6, 6, 6]
    assert max(ring.column("seconds")[1:]) < 0.1


@pytest.mark.parametrize("loader", ["", "ahead"])
def test_gradient_accumulation_is_one_step(runner: Runner, loader: str) -> None:
    ended, ring = run(
        runner,
        """
def ahead(loader):
    following = None
    for batch in loader:
        if following is not None:
            yield following
        following = batch
    yield following
for epoch in range(3):
    total = 0.0
    for index, batch in enumerate(LOADER(DataLoader(data, batch_size=3))):
        loss = loss_of(batch) / 2
        loss.backward()
        total += loss.item()
        if index % 2:
            optimizer.step()
            optimizer.zero_grad()
            print(total)
            total = 0.0
""".replace("LOADER", loader),
    )
    if not loader:
        assert ring.column("samples") == [6] * 6
    assert ring.column("flags") == [MICRO] * 6
    assert same(ring.column("value"), printed(ended))


PRINTED = "what the script has printed"
UNKNOWN = "not a number"
SCRIPTS: dict[str, tuple[str, dict[str, Any]]] = {
    "accumulation without division shows the mean": (
        """
def criterion(batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])
for epoch in range(3):
    losses = []
    for batch in DataLoader(data, batch_size=4):
        loss = criterion(batch)
        loss.backward()
        losses.append(loss.item())
    optimizer.step()
    print(sum(losses) / len(losses))
""",
        {"samples": [12] * 3, "value": PRINTED},
    ),
    "several optimizers make one step": (
        """
critic = nn.Linear(1, 1)
second = torch.optim.Adam(critic.parameters())
for batch in DataLoader(data, batch_size=4):
    critic(model(batch[0]).detach()).mean().backward()
    second.step()
    critic(model(batch[0])).mean().backward()
    optimizer.step()
""",
        {"samples": [4, 4, 4], "value": UNKNOWN, "flags": [MICRO] * 3},
    ),
    "two optimizers of one loss": (
        """
second = torch.optim.SGD([model.bias], lr=0.01)
for batch in DataLoader(data, batch_size=4):
    loss = loss_of(batch)
    loss.backward()
    optimizer.step()
    second.step()
    print(loss.item())
""",
        {"value": PRINTED},
    ),
    "an optimizer inside another": (
        """
class Outer(torch.optim.Optimizer):
    def __init__(self, inner):
        self.inner = inner
        super().__init__(inner.param_groups, {})
    def step(self, closure=None):
        return self.inner.step(closure)

class Sub(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)

outer = Outer(Sub(model.parameters(), lr=0.01))
for batch in DataLoader(data, batch_size=3):
    loss_of(batch).backward()
    outer.step()
""",
        {"samples": [3, 3, 3, 3]},
    ),
    "a scaler that skips": (
        """
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for index, batch in enumerate(DataLoader(data, batch_size=2)):
    optimizer.zero_grad()
    loss = loss_of(batch, float("inf") if index in (0, 3) else 1.0)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print(loss.item())
""",
        {"flags": [SKIPPED, 0, 0, SKIPPED, 0, 0], "samples": [2] * 6, "value": PRINTED},
    ),
    "a fused optimizer that skips": (
        """
fused = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
for index, batch in enumerate(DataLoader(data, batch_size=4)):
    fused.zero_grad()
    scaler.scale(loss_of(batch, float("inf") if index == 1 else 1.0)).backward()
    scaler.step(fused)
    scaler.update()
""",
        {"flags": [0, SKIPPED, 0]},
    ),
    "several backwards in one closure are no loss": (
        """
lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=3)
for one in (optimizer, lbfgs):
    for batch in DataLoader(data, batch_size=4):
        def closure():
            one.zero_grad()
            first, second = loss_of(batch), model(batch[0]).abs().mean()
            first.backward()
            second.backward()
            return first + second
        one.step(closure)
""",
        {"steps": 6, "value": UNKNOWN},
    ),
    "a share before a closure that is called again and again": (
        """
lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=3)
for index, batch in enumerate(DataLoader(data, batch_size=3)):
    def closure():
        loss = loss_of(batch) / 2
        loss.backward()
        return loss
    lbfgs.step(closure) if index % 2 else closure()
""",
        {"steps": 2, "value": UNKNOWN},
    ),
    "accumulation under a scaler": (
        """
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for epoch in range(3):
    total = 0.0
    for index, batch in enumerate(DataLoader(data, batch_size=3)):
        loss = loss_of(batch) / 2
        scaler.scale(loss).backward()
        total += loss.item()
        if index % 2:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            print(total)
            total = 0.0
""",
        {"value": PRINTED},
    ),
    "gradients without backward": (
        """
for batch in DataLoader(data, batch_size=4):
    grads = torch.autograd.grad(loss_of(batch), list(model.parameters()))
    for parameter, grad in zip(model.parameters(), grads):
        parameter.grad = grad
    optimizer.step()
""",
        {"samples": [4, 4, 4], "value": UNKNOWN},
    ),
    "a step without a gradient is a warm up": (
        """
optimizer.step()
for batch in DataLoader(data, batch_size=4):
    loss_of(batch).backward()
    optimizer.step()
""",
        {"samples": [4, 4, 4]},
    ),
    "two loaders in turn": (
        """
one, other = iter(DataLoader(data, batch_size=4)), iter(DataLoader(data, batch_size=2))
for index in range(4):
    loss_of(next(other if index % 2 else one)).backward()
    optimizer.step()
""",
        {"samples": [4, 2, 4, 2]},
    ),
    "streams and batches of ones own": (
        """
from torch.utils.data import IterableDataset
class Stream(IterableDataset):
    def __iter__(self): return iter(zip(*data.tensors))
class Batch:
    def __init__(self, rows): self.x, self.y = (torch.stack(column) for column in zip(*rows))
    def __getitem__(self, index): return (self.x, self.y)[index]
for options in (
    dict(dataset=Stream(), batch_size=5),
    dict(dataset=Stream(), batch_size=5, collate_fn=Batch),
    dict(dataset=data, batch_size=5, collate_fn=Batch),
    dict(dataset=data, batch_sampler=[[0, 1, 2], [3]]),
):
    for batch in DataLoader(**options):
        loss_of(batch).backward()
        optimizer.step()
""",
        {"samples": [5, 5, 2] * 3 + [3, 1]},
    ),
    "an optimizer for each parameter inside backward": (
        """
own = {p: torch.optim.SGD([p], lr=0.01) for p in model.parameters()}
def step(p):
    own[p].step()
    p.grad = None
for p in model.parameters():
    p.register_post_accumulate_grad_hook(step)
for batch in DataLoader(data, batch_size=4):
    loss_of(batch).backward()
""",
        {"samples": [4, 4, 4]},
    ),
    "reentrant checkpointing is one backward": (
        """
from torch.utils.checkpoint import checkpoint
for batch in DataLoader(data, batch_size=4):
    hidden = checkpoint(model, batch[0].requires_grad_(), use_reentrant=True)
    loss = ((hidden - batch[1]) ** 2).mean()
    loss.backward()
    optimizer.step()
    print(loss.item())
""",
        {"flags": [0, 0, 0], "value": PRINTED},
    ),
    "a backward that is not of a loss": (
        """
for batch in DataLoader(data, batch_size=4):
    out = model(batch[0])
    out.backward(torch.ones_like(out))
    optimizer.step()
    torch.autograd.backward([model(batch[0]).sum(), model(batch[0]).mean()])
    optimizer.step()
""",
        {"steps": 6, "value": UNKNOWN},
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_ring_says_what_the_script_did(runner: Runner, name: str) -> None:
    script, found = SCRIPTS[name]
    ended, ring = run(runner, script)
    values = ring.column("value")
    for what, wanted in found.items():
        if wanted == PRINTED:
            assert same(values, printed(ended))
        elif wanted == UNKNOWN:
            assert all(map(math.isnan, values))
        else:
            assert (len(ring.steps) if what == "steps" else ring.column(what)) == wanted


@pytest.mark.parametrize("scaler", ['GradScaler("cpu", enabled=False)', 'GradScaler("cpu")'])
def test_a_scaler_that_never_skips(runner: Runner, scaler: str) -> None:
    ended, ring = run(
        runner,
        f"""
scaler = torch.amp.{scaler}
for batch in DataLoader(data, batch_size=4):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = loss_of(batch)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    print(loss.item())
""",
    )
    assert ring.column("flags") == [0, 0, 0]
    assert same(ring.column("value"), printed(ended))


def test_a_scaled_loss_that_was_scaled_on_is_unknown(runner: Runner) -> None:
    _, ring = run(
        runner,
        """
scaler = torch.amp.GradScaler("cpu")
for batch in DataLoader(data, batch_size=4):
    (scaler.scale(loss_of(batch)) / 4).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    )
    assert len(ring.steps) == 3
    assert all(math.isnan(value) for value in ring.column("value"))


def test_closures(runner: Runner) -> None:
    ended, ring = run(
        runner,
        """
lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=5)
for batch in DataLoader(data, batch_size=6):
    def closure():
        lbfgs.zero_grad()
        loss = loss_of(batch)
        loss.backward()
        return loss
    print(float(lbfgs.step(closure)))
for batch in DataLoader(data, batch_size=6):
    def closure():
        optimizer.zero_grad()
        loss = loss_of(batch)
        loss.backward()
        return loss
    print(float(optimizer.step(closure)))
""",
    )
    assert ring.column("samples") == [6] * 4
    assert same(ring.column("value"), printed(ended))
    assert [flag & MICRO for flag in ring.column("flags")] == [MICRO, MICRO, 0, 0]
    assert all(math.isnan(seconds) for seconds in ring.column("forward"))


ACCUMULATES_IN_A_CLOSURE = """
def shared(batch):
    loss = nn.functional.mse_loss(model(batch[0]), batch[1])
    losses.append(loss.item())
    return loss / 2
for epoch in range(5):
    losses = []
    for index, batch in enumerate(DataLoader(data, batch_size=3)):
        def closure():
            if index % 2 == 0:
                optimizer.zero_grad()
            loss = shared(batch)
            loss.backward()
            return loss
        if index % 2 == 0:
            closure()
        else:
            optimizer.step(closure)
            print(sum(losses) / 2)
            losses = []
"""


def test_accumulation_whose_last_share_is_made_in_the_closure(runner: Runner) -> None:
    ended, ring = run(runner, ACCUMULATES_IN_A_CLOSURE)
    assert ring.column("samples") == [6] * 10
    assert same(ring.column("value"), printed(ended))


def test_a_share_that_is_alone_in_its_closure_is_no_loss(runner: Runner) -> None:
    ended, ring = run(
        runner,
        ACCUMULATES_IN_A_CLOSURE.replace("batch_size=3", "batch_size=4").replace(
            "if index % 2 == 0:\n            closure()", "if index == 0:\n            closure()"
        ),
    )
    whole, alone = ring.column("value")[::2], ring.column("value")[1::2]
    assert same(whole, printed(ended)[::2])
    assert all(math.isnan(value) for value in alone)


def test_a_share_that_is_divided_out_of_sight_gives_no_mean(runner: Runner) -> None:
    _, ring = run(
        runner,
        """
for epoch in range(3):
    for batch in DataLoader(data, batch_size=6):
        loss = loss_of(batch) / 2 + 0 * sum(p.abs().sum() for p in model.parameters())
        loss.backward()
    optimizer.step()
    for batch in DataLoader(data, batch_size=6):
        (((model(batch[0]) - batch[1]) ** 2).sum() / 2).backward()  # of two samples, a mean
    optimizer.step()
""",
    )
    assert ring.column("flags") == [MICRO] * 6
    assert all(math.isnan(value) for value in ring.column("value"))


def test_accumulation_whose_batches_are_all_fetched_first(runner: Runner) -> None:
    """As transformers does it, whose engine divides by one once more."""
    ended, ring = run(
        runner,
        """
for epoch in range(2):
    batches = iter(DataLoader(data, batch_size=2))
    for _ in range(2):
        total = 0.0
        for batch in [next(batches) for _ in range(3)]:
            loss = loss_of(batch) / 3 / 1
            total += loss.item()
            loss.backward()
        optimizer.step()
        print(total)
""",
    )
    assert ring.column("samples") == [6] * 4
    assert same(ring.column("value"), printed(ended))


def test_an_optimizer_that_raises_and_is_caught(runner: Runner) -> None:
    ended, ring = run(
        runner,
        """
class Moody(torch.optim.SGD):
    calls = 0
    def step(self, closure=None):
        Moody.calls += 1
        if Moody.calls in (2, 3):
            raise RuntimeError("not now")
        return super().step(closure)

moody = Moody(model.parameters(), lr=0.01)
for batch in DataLoader(data, batch_size=2):
    loss_of(batch).backward()
    try:
        moody.step()
    except RuntimeError as error:
        print(len(error.__traceback__.tb_frame.f_code.co_name) * 0)
""",
    )
    assert len(printed(ended)) == 2
    assert len(ring.steps) == 4


def test_no_loader_at_all(runner: Runner) -> None:
    ended, ring = run(
        runner,
        """
for index in range(4):
    optimizer.zero_grad()
    loss = loss_of(data[:])
    loss.backward()
    optimizer.step()
    print(loss.item())
""",
    )
    assert ring.column("samples") == [0] * 4
    assert all(math.isnan(seconds) for seconds in ring.column("data"))
    assert math.isnan(ring.column("seconds")[0])
    assert all(seconds > 0 for seconds in ring.column("seconds")[1:])
    assert same(ring.column("value"), printed(ended))


@pytest.mark.parametrize(
    ("options", "fresh"),
    [
        ("num_workers=2", False),
        ("num_workers=1, persistent_workers=True", False),
        ("num_workers=1, multiprocessing_context='spawn', persistent_workers=True", True),
    ],
)
def test_workers_do_not_write(runner: Runner, options: str, fresh: bool) -> None:
    start = runner.watched if fresh else runner.forked
    ended = start(
        "if __name__ == '__main__':"
        + (
            PREAMBLE
            + f"""
loader = DataLoader(data, batch_size=4, {options})
for epoch in range(2):
    for batch in loader:
        loss_of(batch).backward()
        optimizer.step()
print("done")
"""
        ).replace("\n", "\n    ")
    )
    assert ended.seen == (0, "done\n", "")
    assert ended.ring.column("samples") == [4] * 6


def test_two_loaders_side_by_side(runner: Runner) -> None:
    _, ring = run(
        runner,
        """
for one, other in zip(DataLoader(data, batch_size=4), DataLoader(data, batch_size=2)):
    loss_of(one).backward(); loss_of(other)
    optimizer.step()
""",
    )
    # Once may be an evaluation that was left early; the second time it is the script's way.
    assert ring.column("samples") == [0, 6, 6]
    assert math.isnan(ring.column("seconds")[0])


def test_an_inference_is_told_by_its_batches(runner: Runner) -> None:
    _, ring = run(
        runner,
        """
with torch.inference_mode():
    for workers, start in ((0, None), (1, "fork")):
        for batch in DataLoader(data, batch_size=5, num_workers=workers, multiprocessing_context=start):
            model(batch[0])
""",
    )
    told = [row for row in ring.rows if row["kind"] == BATCH]
    assert [(row["step"], row["samples"]) for row in told] == list(enumerate([5, 5, 2] * 2))
    for row in told:
        assert 0 < row["data"] + row["forward"] <= row["seconds"] * 1.0001
        assert math.isnan(row["backward"])
    assert ring.steps == []


def test_an_optimizer_out_of_sight_leaves_batches_with_their_loss(runner: Runner) -> None:
    ended, ring = run(
        runner,
        """
for epoch in range(6):
    for batch in DataLoader(data, batch_size=1):
        loss = loss_of(batch)
        loss.backward()
        with torch.no_grad():
            for each in model.parameters():
                each -= 0.01 * each.grad
                each.grad = None
        if epoch == 5 and len(batch):
            print(loss.item())
""",
    )
    told = [row for row in ring.rows if row["kind"] == BATCH]
    # Of the first 64 batches the script might accumulate; the last one is not followed by another.
    assert [row["samples"] for row in told] == [1] * (72 - 64 - 1)
    assert same([row["value"] for row in told], printed(ended)[4:-1])
    assert ring.steps == []


def test_threads_that_train(runner: Runner) -> None:
    _, ring = run(
        runner,
        """
import threading
def train(seed):
    torch.manual_seed(seed)
    net = nn.Linear(4, 1)
    own = torch.optim.SGD(net.parameters(), lr=0.01)
    for batch in DataLoader(data, batch_size=3):
        net(batch[0]).mean().backward()
        own.step()
threads = [threading.Thread(target=train, args=(seed,)) for seed in (1, 2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
""",
    )
    assert sorted(ring.column("step")) == list(range(8))
    assert ring.column("samples") == [3] * 8


def test_report(runner: Runner) -> None:
    _, ring = run(
        runner,
        """
from distconsole_training import report
import numpy
report(before=1)
for batch in DataLoader(data, batch_size=6):
    loss = loss_of(batch)
    loss.backward()
    report(inside=loss * 0 + 2)
    optimizer.step()
    report(accuracy=numpy.float32(0.5), samples=6)
report(samples=9)
report(step=70, mine=3.5, text="no", nothing=None, table=[1], tensor=torch.ones(3))
""",
    )
    assert ring.metrics == [
        ("before", 0, 1.0, 0),
        ("inside", 0, 2.0, 0),
        ("accuracy", 0, 0.5, 6),
        ("inside", 1, 2.0, 0),
        ("accuracy", 1, 0.5, 6),
        ("samples", 1, 9.0, 9),
        ("mine", 70, 3.5, 0),
    ]
