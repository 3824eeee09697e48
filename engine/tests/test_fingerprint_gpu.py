"""The sums that Triton computes on a GPU are those of the CPU, bit for bit; tried
without a GPU.

Triton's interpreter runs the kernel on tensors of the CPU. It must be chosen before
Triton is imported, so those tests run in a process of their own: python -m
tests.test_fingerprint_gpu
"""

import os
import random
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from seedbed import fingerprint
from tests.test_fingerprint import DTYPES, ROOM_WORDS

CPU = torch.device("cpu")


def both(lists: Sequence[Sequence[Tensor]]) -> tuple[list[int], list[int]]:
    """Return the hashes of lists by Triton, and by PyTorch's operations."""
    by_triton = fingerprint.Hasher(CPU)
    by_triton._at_once = fingerprint.in_one_launch(CPU)
    assert by_triton._at_once is not None
    with patch.object(
        by_triton, "_sum", side_effect=AssertionError("must not be called")
    ):
        by_triton.add(*lists[:2])
        by_triton.add(*lists[2:])
    return by_triton.hashes().tolist(), fingerprint.of_lists(lists).tolist()


def some_tensor(draw: random.Random, dtype: torch.dtype) -> Tensor:
    """Return a random tensor of 0 to 4 dimensions, one of them perhaps of size 0, in
    any layout."""
    shape = [draw.choice([1, 2, 3, 5, 40]) for _ in range(draw.randrange(5))]
    if draw.random() < 0.1:
        shape = [0, *shape[1:]]
    bits = torch.tensor([draw.randrange(2**8) for _ in range(16)], dtype=torch.uint8)
    pattern = bits % 2 == 1 if dtype is torch.bool else bits.view(dtype)
    count = torch.Size(shape).numel()
    numbers = pattern.repeat(count // len(pattern) + 1)[:count].view(shape)
    layouts = {
        "as it is": lambda: numbers,
        "other order": lambda: numbers.permute(
            draw.sample(range(len(shape)), len(shape))
        ),
        "every second": lambda: numbers[..., ::2] if shape else numbers,
        "expanded": lambda: numbers.expand(3, *shape) if len(shape) < 4 else numbers,
        "channels last": lambda: (
            numbers.contiguous(memory_format=torch.channels_last)
            if len(shape) == 4
            else numbers
        ),
    }
    return layouts[draw.choice([*layouts])]()


def hashes_are_those_of_the_cpu() -> None:
    """Random lists of all dtypes and layouts, one longer than a piece, without words
    and without tensors, sparse and nested tensors. Negative control: the hashes differ
    from each other."""
    draw = random.Random(0)
    dtypes = [*DTYPES, torch.bool]
    lists = [[some_tensor(draw, dtype)] for dtype in dtypes]
    for _ in range(20):
        chosen = [draw.choice(dtypes) for _ in range(draw.randrange(8))]
        lists.append([some_tensor(draw, dtype) for dtype in chosen])
    big = torch.arange(ROOM_WORDS + 3000, dtype=torch.int32) * 77
    odd = torch.randn(3, 2, dtype=torch.complex64).conj().t(), torch.eye(3).to_sparse(1)
    jagged = torch.nested.nested_tensor(
        [torch.ones(3), torch.ones(5)], layout=torch.jagged
    )
    lists += [
        [torch.zeros(5), big],
        [],
        [*odd, jagged],
        [torch.randn(2, 3, 4, 5, 6).movedim(0, 3)],
    ]
    by_triton, by_torch = both(lists)
    assert by_triton == by_torch
    assert len(set(by_torch)) > 20, "negative control"


def one_bit_is_seen() -> None:
    for tensor in (
        torch.arange(5000).short(),
        torch.arange(9999).view(3, 33, 101).movedim(1, 2),
    ):
        flipped = tensor.clone()
        flipped[-1:] ^= 1 << 9
        (before, after), expected = both([[tensor], [flipped]])
        assert [before, after] == expected
        assert before != after


def a_number_stands_for_words_that_are_zero() -> None:
    """As those of other processes, in a list that they share. Negative control: another
    number."""
    add_sums = fingerprint.in_one_launch(CPU)
    assert add_sums is not None
    before = torch.randn(1500)
    after = torch.arange(3000)
    found = torch.zeros(3, dtype=torch.int64)
    add_sums(
        found,
        [[before, torch.zeros(700), after], [before, 700, after], [before, 701, after]],
    )
    assert found[0] == found[1] != found[2]


def one_tensor_in_no_order_does_not_slow_the_others() -> None:
    """It has a launch of its own, of a program for each 32 rows. Negative control:
    without it."""
    from seedbed import fingerprint_gpu

    contiguous = torch.zeros(200, 1024)
    transposed = torch.zeros(1024, 64).t()
    for tensors, expected in (
        ([contiguous, transposed], [(True, 7), (False, 2)]),
        ([contiguous], [(True, 7)]),
    ):
        found = fingerprint_gpu._readable(tensors, CPU)
        assert found is not None
        launches = fingerprint_gpu._Layout([found[1]], 1024, CPU).launches
        assert [(in_order, programs) for in_order, _, programs in launches] == expected


def addresses_are_sent_once() -> None:
    """A layout is sent once, and addresses if they change. Negative control: copies."""
    from seedbed import fingerprint_gpu

    add_sums = fingerprint.in_one_launch(CPU)
    assert add_sums is not None
    found = torch.zeros(1, dtype=torch.int64)
    weights = [torch.randn(3, 4), torch.randn(2000)]
    copies = [each.clone() for each in weights]
    sent = fingerprint_gpu._Layout._sent
    with patch.object(
        fingerprint_gpu._Layout, "_sent", autospec=True, side_effect=sent
    ) as calls:
        counts = []
        for tensors in (weights, weights, copies, copies, weights):
            add_sums(found, [tensors])
            counts.append(calls.call_count)
            for each in weights:
                each.add_(1)
    assert counts == [3, 3, 4, 4, 4]


def a_kernel_with_other_sums_is_not_used() -> None:
    """Negative control: the other functions, in which it is."""
    from seedbed import fingerprint_gpu

    fingerprint.in_one_launch.cache_clear()
    other = partial(fingerprint_gpu.add_sums, row_key=1)
    with patch.object(
        fingerprint_gpu,
        "add_sums",
        lambda sums, lists, columns, row_key: other(sums, lists, columns),
    ):
        assert fingerprint.in_one_launch(CPU) is None


@pytest.mark.long
def test_triton_computes_the_same_hashes() -> None:
    """Every function above that takes nothing, with Triton's interpreter."""
    pytest.importorskip("triton", reason="Triton is not installed; Linux alone has it")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    words = [sys.executable, "-m", "tests.test_fingerprint_gpu"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_cpus_words_are_moved_as_one_tensor() -> None:
    """Ids of samples and counts of optimizers are on the CPU."""
    pytest.importorskip("triton", reason="Triton is not installed; Linux alone has it")
    from seedbed import fingerprint_gpu

    there = torch.device("meta")
    words = [
        torch.ones(3, 2).int(),
        torch.ones(5, device=there).int(),
        torch.ones(4).short(),
    ]
    with patch.object(torch, "cat", wraps=torch.cat) as joined:
        found = fingerprint_gpu._readable(words, there)
    assert joined.call_args.args[0][0].tolist() == [1] * 6
    assert found is not None
    assert [(len(each), each.device) for each in found[0]] == [
        (6, there),
        (5, there),
        (4, there),
    ]


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("capability", [75, 90])
def test_the_kernel_compiles(
    capability: int, in_order: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton compiles it to machine code without the GPU."""
    triton = pytest.importorskip(
        "triton", reason="Triton is not installed; Linux alone has it"
    )
    from triton.backends.compiler import GPUTarget

    from seedbed import fingerprint_gpu

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    names = fingerprint_gpu._add_rows.arg_names
    signature = {name: "constexpr" if name.isupper() else "*i64" for name in names}
    sizes = {"KEY": fingerprint._ROWS, "WIDTH": 1024, "ROWS": fingerprint_gpu._ROWS}
    sizes |= {"DIMS": fingerprint_gpu._DIMS, "IN_ORDER": in_order}
    source = triton.compiler.ASTSource(fingerprint_gpu._add_rows, signature, sizes)
    target = GPUTarget("cuda", capability, 32)
    options = {"enable_fp_fusion": False}
    compiled = triton.compile(source, target=target, options=options)
    assert "global.gpu.relaxed.add.u64" in compiled.asm["ptx"]
    assert compiled.asm["cubin"]


if __name__ == "__main__":
    hashes_are_those_of_the_cpu()
    one_bit_is_seen()
    a_number_stands_for_words_that_are_zero()
    one_tensor_in_no_order_does_not_slow_the_others()
    addresses_are_sent_once()
    a_kernel_with_other_sums_is_not_used()
