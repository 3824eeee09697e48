"""The example and the program that measures run to their end on a CPU."""

import subprocess
import sys
from pathlib import Path

import torch

from examples import unet
from tests.replacing import called, forget, replacing

HERE = Path(__file__).parents[1]


def test_a_unet_is_refused_without_the_kernels_and_the_same_with_them() -> None:
    command = [sys.executable, "examples/unet.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=HERE)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith(
        "without the kernels: max_unpooling2d_forward_out does not have a "
    )
    assert lines[1] == "with the kernels: the same bits twice; replaced:"
    assert lines[2].startswith("  max_unpool2d, ")
    assert "examples/unet.py:" in lines[2]


def test_a_unet_on_a_gpu() -> None:
    """With all that is replaced there, it has the same bits twice, and nearly those of
    PyTorch's kernels. Negative control: other weights after another step."""
    expected = unet.train("cpu")
    more = unet.train("cpu", steps=6)
    forget()
    with replacing():
        first = unet.train("cpu")
        second = unet.train("cpu")
    assert called() >= {
        "max_unpool2d",
        "_upsample_bilinear2d_aa_backward",
        "nll_loss2d_forward",
    }
    for one, other, near, later in zip(first, second, expected, more, strict=True):
        assert torch.equal(one, other)
        torch.testing.assert_close(one, near, rtol=1e-3, atol=1e-4)
        assert not torch.equal(one, later)


def test_measuring() -> None:
    names = ["put_", "upsample_linear1d_backward", "bincount", "nanmedian"]
    command = [
        sys.executable,
        "measure.py",
        "--device",
        "cpu",
        "--small",
        "--names",
        *names,
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=HERE)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {
        line.split(" | ")[0]: line.split(" | ") for line in done.stdout.splitlines()[2:]
    }
    assert {row.removeprefix("| ") for row in rows} == set(names)
    assert all(
        row[1:4] == ["yes", "1", "1"] and len(row) == 10 for row in rows.values()
    )
