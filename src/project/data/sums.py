"""Text as bytes, for next-token prediction: sums such as `17+25=42`, or a text file."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from seedbed import rng
from seedbed.datasets import SPLITS

END = "\n"  # of a line, which the model has to predict as well
PADDING = 0  # a byte that texts do not contain
NO_TARGET = -100  # no loss here: the default ignore_index of `F.cross_entropy`


class Sums(Dataset[tuple[Tensor, Tensor]]):
    """All sums of two numbers of up to `digits` digits, each in one split that `seed`
    decides."""

    def __init__(self, split: str, seed: int, digits: int) -> None:
        self._count = 10**digits
        order = rng.permutation(rng.key(seed, "split"), self._count**2)
        self._pairs = order[_part(split, len(order))]

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return a sum's bytes and the next bytes, those of the answer only; int64 (T,)
        both."""
        a, b = divmod(int(self._pairs[index]), self._count)
        question = f"{a}+{b}="
        inputs, targets = following(encode(f"{question}{a + b}{END}"))
        targets[: len(question) - 1] = NO_TARGET
        return inputs, targets


class Text(Dataset[tuple[Tensor, Tensor]]):
    """A text file in pieces of `length` bytes; train, validation and test follow in
    this order."""

    def __init__(self, split: str, file: str, length: int) -> None:
        content = Path(file).read_bytes()
        self.sha256 = {file: hashlib.sha256(content).hexdigest()}
        self._text = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        pieces = range((len(content) - 1) // length)
        self._pieces = pieces[_part(split, len(pieces))]
        self._length = length

    def __len__(self) -> int:
        return len(self._pieces)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return a piece's bytes and the next byte of each, int64 (length,) both."""
        start = self._pieces[index] * self._length
        return following(self._text[start : start + self._length + 1].long())


def text_or_sums(
    split: str, seed: int, digits: int, file: str | None, length: int
) -> Dataset[tuple[Tensor, Tensor]]:
    """Return the pieces of the file if one is named, otherwise the sums."""
    return Sums(split, seed, digits) if file is None else Text(split, file, length)


def pad(samples: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Stack samples, padded to the longest of the batch; int64 (B, T) both."""
    inputs, targets = map(list, zip(*samples, strict=True))
    return (
        pad_sequence(inputs, batch_first=True, padding_value=PADDING),
        pad_sequence(targets, batch_first=True, padding_value=NO_TARGET),
    )


def encode(text: str) -> Tensor:
    """Return a text's UTF-8 bytes, int64 (T,)."""
    return torch.tensor(list(text.encode()))


def decode(tokens: Tensor) -> str:
    """Return the text of UTF-8 bytes, (T,); invalid bytes are replaced."""
    return bytes(tokens.tolist()).decode(errors="replace")


def following(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return all tokens but the last, and the next token of each."""
    return tokens[:-1], tokens[1:].clone()


def _part(split: str, count: int) -> slice:
    """Return a split's slice of `count` samples: 80 % train, 10 % validation, 10 %
    test."""
    edges = [0, count * 8 // 10, count * 9 // 10, count]
    place = SPLITS.index(split)
    return slice(edges[place], edges[place + 1])
