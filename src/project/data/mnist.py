"""All of MNIST: downloaded if missing, and checked by SHA-256 at every read."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from project.data.images import Augment, ImageDataset
from seedbed import downloads, project, rng

# Digests of the uncompressed files.
SHA256 = {
    "train-images-idx3-ubyte": (
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"
    ),
    "train-labels-idx1-ubyte": (
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"
    ),
    "t10k-images-idx3-ubyte": (
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"
    ),
    "t10k-labels-idx1-ubyte": (
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"
    ),
}

# For whoever has no network.
ADVICE = ", or try data=mnist5k, which needs no download"


class MNIST(ImageDataset):
    """One split: train and validation share the 60,000 training digits, test is the
    official one.

    The arguments are explained in configs/data/mnist.yaml.
    """

    def __init__(
        self,
        root: str,
        mirrors: Sequence[str] | None,
        split: str,
        seed: int,
        validation_samples: int,
        augment: Augment | None = None,
    ) -> None:
        place = project.root() / Path(root).expanduser()
        arrays = load(place, None if mirrors is None else tuple(mirrors))
        source = "t10k" if split == "test" else "train"
        images = arrays[f"{source}-images-idx3-ubyte"]
        labels = arrays[f"{source}-labels-idx1-ubyte"]
        order = rng.permutation(rng.key(seed, "split"), len(images))
        ids = {
            "train": order[validation_samples:],
            "validation": order[:validation_samples],
            "test": np.arange(len(images)),
        }[split]
        super().__init__(images[ids], labels[ids], augment, SHA256)


@lru_cache(maxsize=1)
def load(root: Path, mirrors: tuple[str, ...] | None) -> dict[str, NDArray[np.uint8]]:
    """Return the four raw files as arrays; missing ones are downloaded, all are
    checked."""
    raw = root / "MNIST" / "raw"
    if any(not (raw / name).exists() for name in SHA256):
        # its import costs two seconds
        from torchvision.datasets import MNIST as Torchvision

        mirrors = tuple(Torchvision.mirrors) if mirrors is None else mirrors
    contents = downloads.read(raw, SHA256, mirrors or (), ADVICE)
    return {name: parse_idx(content) for name, content in contents.items()}


def parse_idx(content: bytes) -> NDArray[np.uint8]:
    """Parse the content of an IDX file of unsigned bytes."""
    # Two zero bytes, type, number of dimensions; the big-endian uint32 sizes; the
    # elements.
    dimensions = content[3]
    shape = np.frombuffer(content, dtype=">u4", count=dimensions, offset=4)
    return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * dimensions).reshape(
        shape
    )
