"""Checksums of real tensors: equal for equal bits, another for every other bit."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from distconsole_training.torch_hook.torch_verify import Gathered, Summer  # noqa: E402


def total(tensor: Any, most_bytes: int = 0) -> int:
    summer = Summer(torch)
    assert summer.takes(tensor)
    ((number,),) = Gathered(torch, [[summer.sum_of(tensor, most_bytes)]]).value()
    return number


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64,
              torch.uint8, torch.bool, torch.complex64]
)  # fmt: skip
@pytest.mark.parametrize("shape", [(0,), (3,), (7, 5), (64, 64)])
def test_one_element_changes_the_sums_of_tensors(dtype: Any, shape: tuple[int, ...]) -> None:
    one = torch.arange(torch.tensor(shape).prod().item()).reshape(shape).to(dtype)
    assert total(one) == total(one.clone())
    if one.numel():
        other = one.clone()
        last = other.view(-1)[-1:]
        last.copy_(last.logical_not())
        assert total(other) != total(one)


def test_the_last_bit_counts() -> None:
    one = torch.rand(1001)
    other = one.clone()
    other.view(torch.int32)[500] += 1
    assert total(one) != total(other)


@pytest.mark.parametrize("start", [0, 1, 2, 3])
def test_where_a_tensor_lies_does_not_matter(start: int) -> None:
    values = torch.rand(101)
    home = torch.zeros(200)
    home[start : start + 101] = values
    assert total(home[start : start + 101]) == total(values)


def test_a_tensor_with_gaps_and_one_in_another_order_are_read() -> None:
    image = torch.rand(2, 3, 5, 7)
    assert total(image.to(memory_format=torch.channels_last)) == total(
        image.permute(0, 2, 3, 1).contiguous()
    )
    assert total(image[:, :, ::2]) == total(image[:, :, ::2].contiguous())


def test_only_the_beginning_counts_where_it_is_asked() -> None:
    one = torch.rand(100)
    other = one.clone()
    other[50:] = 0
    assert total(one, 200) == total(other, 200)
    other[49] = 0
    assert total(one, 200) != total(other, 200)


def test_nothing_of_the_tensor_changes() -> None:
    weight = torch.nn.Parameter(torch.rand(8, 3))
    version, state = weight._version, torch.get_rng_state()
    total(weight)
    assert weight._version == version
    assert weight.grad_fn is None
    assert torch.equal(torch.get_rng_state(), state)


def test_what_is_not_ours_to_read_is_not_taken() -> None:
    class Own(torch.Tensor):  # type: ignore[misc]
        pass

    takes = Summer(torch).takes
    assert not takes(torch.rand(3).as_subclass(Own))
    assert not takes(torch.rand(3, device="meta"))
    assert not takes(torch.eye(3).to_sparse())
    assert not takes("text")


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), float("-inf"), 1.0])
def test_a_gradient_that_is_not_finite_is_bad(odd: float) -> None:
    gradient = torch.full((33,), 6e4, dtype=torch.float16)  # its norm is beyond its type
    gradient[17] = odd
    bad = Summer(torch).badness(gradient)
    assert Gathered(torch, [[bad], []]).value() == [[int(odd != 1.0)], []]


@pytest.mark.gpu
def test_a_device_sums_like_the_cpu_and_nobody_waits() -> None:
    weight = torch.rand(1001, 7)
    summer = Summer(torch)
    coming = Gathered(torch, [[summer.sum_of(weight.cuda())], [5]])
    torch.cuda.synchronize()
    assert coming.arrived()
    assert coming.value() == [[total(weight)], [5]]
