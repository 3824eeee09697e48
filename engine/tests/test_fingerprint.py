"""A fingerprint depends on every bit, its place, shapes and dtypes, and on nothing
else."""

import hashlib
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from seedbed import fingerprint
from tests.test_rng import MASK, property_test, splitmix64

QINT = torch.quint8
ROW_WORDS = 2**10
ROOM_WORDS = 2**20
DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64),
    *(
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.float8_e4m3fn,
    ),
)
BITS = st.binary(min_size=16, max_size=160).map(lambda b: b[: len(b) // 16 * 16])


def of(*tensors: Tensor) -> int:
    return int(fingerprint.of_tensors(tensors)) & MASK


def from_bytes(content: bytes, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).view(dtype)


def reference(content: bytes) -> int:
    """Hash one float32 tensor (N,) as the docstring of the module describes, in plain
    Python."""
    words = struct.unpack(f"<{len(content) // 4}i", content)
    rows = (words[i : i + ROW_WORDS] for i in range(0, len(words), ROW_WORDS))
    hashes = (
        sum(word * (splitmix64(0x5EEDBED, i) | 1) for i, word in enumerate(row))
        for row in rows
    )
    terms = (row * (splitmix64(0xC0FFEE, i) | 1) for i, row in enumerate(hashes))
    kind = f"torch.float32 ({len(words)},)".encode()
    salt = int.from_bytes(hashlib.blake2b(kind, digest_size=8).digest(), "little")
    return (sum(terms) + (salt if words else 0)) & MASK


@property_test
@given(
    BITS
    | st.integers(0, 99).map(lambda i: bytes([i, 3, 200, 41]) * (ROW_WORDS + 30 * i))
)
def test_it_is_the_multilinear_hash(content: bytes) -> None:
    """The hash equals that of an independent implementation of the documentation."""
    assert of(from_bytes(content)) == reference(content)


@property_test
@given(BITS, st.data(), st.sampled_from(DTYPES))
def test_one_flipped_bit_is_seen(
    content: bytes, data: st.DataObject, dtype: torch.dtype
) -> None:
    """Flipping any bit of any dtype changes the hash; flipping it back restores the
    hash."""
    bit = data.draw(st.integers(0, 8 * len(content) - 1))
    flipped = bytearray(content)
    flipped[bit // 8] ^= 1 << bit % 8
    assert of(from_bytes(content, dtype)) != of(from_bytes(bytes(flipped), dtype))
    flipped[bit // 8] ^= 1 << bit % 8
    assert of(from_bytes(content, dtype)) == of(from_bytes(bytes(flipped), dtype))


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool])
def test_memory_is_not_seen(dtype: torch.dtype) -> None:
    """Views (every second element, a transposed matrix, a scalar) have the hash of
    their copies."""
    bits = torch.arange(16 * 24, dtype=torch.int32).to(torch.uint8)
    numbers = bits % 2 == 1 if dtype is torch.bool else bits.view(dtype)[:24]
    views = (numbers[::2], numbers[:24].view(4, 6).t(), numbers[3], numbers[5::30])
    for view in views:
        copy = torch.empty(view.shape, dtype=dtype).copy_(view)
        assert of(view) == of(copy)
    assert len({of(view) for view in views}) == 4


def test_shapes_and_dtypes_are_seen() -> None:
    """Equal bits in other shapes, dtypes or cuts hash differently. Negative control:
    clones."""
    bits = torch.arange(6, dtype=torch.int32) - 1
    lists = [
        [bits.view(2, 3)],
        [bits.view(3, 2)],
        [bits],
        [bits[:2], bits[2:]],
        [bits[:3], bits[3:]],
        [bits.short()],
        [bits.view(torch.float32)],
        [bits[3:], bits[:3]],
    ]
    hashes = [of(*tensors) for tensors in lists]
    assert len(set(hashes)) == len(lists)
    assert hashes == [of(*(each.clone() for each in tensors)) for tensors in lists]


@pytest.mark.parametrize(
    "words", [ROOM_WORDS - 1, ROOM_WORDS, ROOM_WORDS + 1, 2 * ROOM_WORDS + 5]
)
def test_large_tensors_are_seen_to_their_end(words: int) -> None:
    """Flipped bits, swapped words (also of the same column) and moved rows change the
    hash."""
    tensor = torch.arange(words, dtype=torch.int32)
    before = of(tensor)
    for place in {0, words // 2, words - 1}:
        tensor[place] ^= 1 << 31
        assert of(tensor) != before
        tensor[place] ^= 1 << 31
    assert of(tensor) == before
    for distance in (ROW_WORDS, ROOM_WORDS - ROW_WORDS, ROOM_WORDS % words or 1):
        there = torch.tensor([3, 3 + distance]) % words
        tensor[there] = tensor[there.flip(0)]
        assert of(tensor) != before
        tensor[there] = tensor[there.flip(0)]
    assert of(torch.cat([tensor[ROW_WORDS:], tensor[:ROW_WORDS]])) != before


def test_a_list_has_its_hash_whatever_was_hashed_before_it() -> None:
    """Earlier lists may be longer, shorter or empty; a list may just fill the room or
    exceed it."""
    sizes = (
        10,
        ROOM_WORDS - 500,
        ROW_WORDS,
        ROOM_WORDS,
        7,
        ROOM_WORDS + 1,
        600_000,
        600_000,
    )
    lists = [[torch.arange(n) % 251 == 0, torch.tensor([n + 1j])] for n in sizes]
    lists.append([])
    expected = [int(fingerprint.of_tensors(each)) for each in lists]
    assert len(set(expected)) == len({*sizes, 0}), "negative control"
    hasher = fingerprint.Hasher(torch.device("cpu"))
    for chosen in (
        range(9),
        range(9),
        [4, 8, 0],
        [4, 8, 0],
        [1, 2],
        [4, 0],
        range(8, -1, -1),
        [0],
    ):
        hasher.add(*(lists[index] for index in chosen[:1]))
        hasher.add(*(lists[index] for index in chosen[1:]))
        assert hasher.hashes().tolist() == [expected[index] for index in chosen]


def test_a_sparse_tensor_has_the_hash_of_what_it_stands_for() -> None:
    """Gradients of `nn.Embedding(sparse=True)` are fingerprinted this way.
    Negative control: another value has another hash."""
    dense = torch.zeros(5, 2)
    dense[3] = 1.5
    other = dense * 2
    expected = fingerprint.of_tensors([dense])
    assert fingerprint.of_tensors([dense.to_sparse(1)]) == expected
    assert fingerprint.of_tensors([other.to_sparse(1)]) != expected


def test_scales_of_quantized_tensors_are_seen() -> None:
    """And their zero points, and the axis of several. Negative control: the integers
    are equal."""
    numbers = torch.arange(4.0).reshape(2, 2)

    def per_tensor(scale: float, zero_point: int) -> Tensor:
        return torch.quantize_per_tensor(
            numbers * scale - zero_point * scale, scale, zero_point, QINT
        )

    def per_channel(scales: list[float], zero_points: list[int], axis: int) -> Tensor:
        integers = per_tensor(1.0, 0).int_repr()
        given = torch.tensor(scales).double(), torch.tensor(zero_points)
        return torch._make_per_channel_quantized_tensor(integers, *given, axis)

    tensors = [per_tensor(1.0, 0), per_tensor(0.5, 0), per_tensor(1.0, 1)]
    tensors += [per_channel([1.0, 1.0], [0, 0], 0), per_channel([1.0, 2.0], [0, 0], 0)]
    tensors += [per_channel([1.0, 1.0], [0, 1], 0), per_channel([1.0, 1.0], [0, 0], 1)]
    assert all(torch.equal(each.int_repr(), numbers.byte()) for each in tensors)
    assert len({of(each) for each in tensors}) == len(tensors)
    assert of(per_tensor(0.5, 0)) == of(tensors[1])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_shapes_in_nested_tensors_are_seen(layout: torch.layout) -> None:
    """Negative control: the numbers are the same, in the same order."""
    bits = torch.arange(12.0)

    def nested(*shapes: tuple[int, ...]) -> Tensor:
        sizes = [torch.Size(shape).numel() for shape in shapes]
        parts = [
            part.reshape(shape)
            for part, shape in zip(bits.split(sizes), shapes, strict=True)
        ]
        return torch.nested.nested_tensor(parts, layout=layout)

    shapes = [((2, 2, 1), (4, 2, 1)), ((2, 1, 2), (4, 1, 2)), ((3, 2, 1), (3, 2, 1))]
    hashes = {of(nested(*each)) for each in shapes}
    assert len(hashes) == 3
    assert {of(nested(*each)) for each in shapes} == hashes


def test_lengths_of_jagged_tensors_are_seen() -> None:
    values = torch.arange(12.0).reshape(6, 2)
    offsets = torch.tensor([0, 3, 6])

    def jagged(*lengths: int) -> Tensor:
        given = torch.tensor(lengths)
        return torch.nested.nested_tensor_from_jagged(values, offsets, lengths=given)

    assert of(jagged(2, 3)) != of(jagged(3, 3))


def test_lists_that_are_hashed_together_have_the_hashes_they_have_alone() -> None:
    """Few and many, short and long, empty ones and those of other dtypes.

    Negative control: in another order.
    """
    lists = [
        [torch.randn(3, 4), torch.arange(7)],
        [],
        [torch.randn(1024)],
        [torch.zeros(0)],
        [torch.randn(5000).bfloat16(), torch.tensor(3)],
    ]
    words = fingerprint._PIECE_WORDS - 1000
    large, other = ([torch.randn(words)] for _ in range(2))
    for several in (lists, [*lists, large], [large, other], lists * 4):
        alone = [int(fingerprint.of_tensors(each)) for each in several]
        hasher = fingerprint.Hasher(torch.device("cpu"))
        for _ in range(2):  # the second time, in memory that is used
            hasher.add(*several)
            assert hasher.hashes().tolist() == alone
        hasher.add(*reversed(several))
        assert hasher.hashes().tolist() != alone
