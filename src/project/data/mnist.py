"""All of MNIST: found, or downloaded by torchvision, and checked by its digests every time."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from project.data.images import Augment, ImageDataset
from seedbed import project, rng
from seedbed.data import files
from seedbed.errors import InputError

# Of the raw files.
SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
Arrays = dict[str, NDArray[np.uint8]]


class MNIST(ImageDataset):
    """A part of the 60,000 training digits, or the official test set, which is only ever that."""

    def __init__(
        self,
        root: str,
        mirrors: Sequence[str] | None,
        split: str,
        seed: int,
        validation_samples: int,
        augment: Augment | None = None,
    ) -> None:
        """Find, or download, check and read the digits.

        Args:
            root: where torchvision keeps data, from the project's folder on; the files lie in
                root/MNIST/raw.
            mirrors: addresses to download from (https:, http:, file:); None: torchvision's own.
            split: train, validation (both from the training set, by a fixed split) or test.
            seed: of the split stream.
            validation_samples: how many of the training set are for validation.
            augment: random changes in training.
        """
        _check_places(root, mirrors)
        arrays = load(
            project.root() / Path(root).expanduser(), None if mirrors is None else tuple(mirrors)
        )
        source = "t10k" if split == "test" else "train"
        images, labels = (
            arrays[f"{source}-images-idx3-ubyte"],
            arrays[f"{source}-labels-idx1-ubyte"],
        )
        ids = _split(split, len(images), seed, validation_samples)
        super().__init__(images[ids], labels[ids], augment, SHA256)


def _check_places(root: object, mirrors: object) -> None:
    if not isinstance(root, str) or not root:
        raise InputError(f"data.root: expected a folder, got {root}; try data.root=data")
    is_list = isinstance(mirrors, list | tuple) and all(isinstance(m, str) for m in mirrors)
    if mirrors is not None and not is_list:
        raise InputError(
            f"data.mirrors: expected a list of addresses, got {mirrors}; "
            f"try data.mirrors=[{mirrors}]"
        )


def _split(split: str, n: int, seed: int, validation_samples: int) -> NDArray[np.int64]:
    if split == "test":
        return np.arange(n)
    if split not in ("train", "validation"):
        raise InputError(f"data: expected split train, validation or test, got {split}; correct it")
    if not isinstance(validation_samples, int) or not 1 <= validation_samples < n:
        raise InputError(
            f"data.validation_samples: expected an integer from 1 to {n - 1}, "
            f"got {validation_samples}; try data.validation_samples=5000"
        )
    order = rng.permutation(rng.key(seed, "split"), n)
    return order[:validation_samples] if split == "validation" else order[validation_samples:]


@lru_cache(maxsize=1)
def load(root: Path, mirrors: tuple[str, ...] | None) -> Arrays:
    """Return the four raw files as arrays, once each has the digest that it must have.

    Raises:
        InputError: a file is damaged, or missing and not to be had.
    """
    raw = root / "MNIST" / "raw"
    if any(not (raw / name).exists() for name in SHA256):
        from torchvision.datasets import MNIST as Torchvision  # its import costs two seconds

        mirrors = tuple(Torchvision.mirrors) if mirrors is None else mirrors
    otherwise = ", or try data=mnist5k, which needs no download"
    contents = files.read(raw, SHA256, mirrors or (), otherwise)
    return {name: parse_idx(content) for name, content in contents.items()}


def parse_idx(content: bytes) -> NDArray[np.uint8]:
    """Return the array in an IDX file of bytes.

    The format: two zeros, the type, the number of dimensions; each dimension as a big-endian
    32-bit integer; the elements.
    """
    dimensions = content[3]
    shape = np.frombuffer(content, dtype=">u4", count=dimensions, offset=4)
    return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * dimensions).reshape(shape)
