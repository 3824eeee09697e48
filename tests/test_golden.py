"""The CNN's first steps have the same bits on every x86-64 CPU with AVX, under
`portable`.

After an intended change (another PyTorch, an edit of the model or its data), take the
new value from the failed test, in a separate commit that says why.
"""

import platform
from pathlib import Path

import pytest
import torch

import seedbed
from seedbed import testing

# Fingerprint of the weights after four steps, by PyTorch's version.
GOLDEN = {"2.15.0": "b0eed28a787bc100"}


@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="needs an x86-64 CPU"
)
def test_weights_after_four_steps(tmp_path: Path) -> None:
    version = torch.__version__.partition("+")[0]
    if version not in GOLDEN:
        pytest.skip(f"no golden fingerprint of torch {version}")
    settings = testing.configuration(
        "data=mnist5k",
        "model=cnn",
        "determinism=portable",
        "seed=0",
        "trainer.max_steps=4",
    )
    testing.train([(tmp_path / "run", settings)])
    assert (
        seedbed.read(tmp_path / "run").fingerprints[-1].stages["weights"]
        == GOLDEN[version]
    )
