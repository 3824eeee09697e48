"""The table of operations says what is so for this version of PyTorch."""

from mmap import ACCESS_READ, mmap
from pathlib import Path

import pytest
import torch

from tests.replacing import OPERATIONS
from torch_deterministic_kernels import switch
from torch_deterministic_kernels.__main__ import markdown

LIBRARY = Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"
PAGE = Path(__file__).parents[1] / "OPERATIONS.md"


def test_all_operations_exist() -> None:
    import torchvision  # noqa: F401  # its operators

    for operation in OPERATIONS:
        assert switch.operator_of(operation) is not None, operation.operator


@pytest.mark.skipif(not LIBRARY.exists(), reason="PyTorch is not built for GPUs")
def test_pytorch_still_refuses_them() -> None:
    """A name that its library has no more is of a kernel that retires: its row needs
    the version. Negative control: a name that never was there."""
    refused = {
        item.refused_as for item in OPERATIONS if not switch.is_retired(item)
    } - {""}
    with (
        LIBRARY.open("rb") as file,
        mmap(file.fileno(), 0, access=ACCESS_READ) as content,
    ):
        missing = {name for name in refused if content.find(f"{name}\0".encode()) < 0}
        assert content.find(b"upsample_nearest9d_backward_out_cuda\0") < 0
    assert missing == set()


@pytest.mark.parametrize(
    ("until", "version", "expected"),
    [
        (None, "2.15.0", False),
        ("2.16", "2.15.0+cu132", False),
        ("2.15", "2.15.0+cu132", True),
        ("2.9", "2.15.0", True),
        ("2.16", "2.16.0a0+git1", True),
        ("3.0", "2.15.0", False),
    ],
)
def test_a_kernel_retires(
    until: str | None, version: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch's own is called from the version on that has a deterministic one."""
    monkeypatch.setattr(torch, "__version__", version)
    row = switch.Operation(
        "aten::put_", "", "", "", "", print, devices=("cpu",), until=until
    )
    assert switch.is_retired(row) is expected
    before = len(switch._libraries)
    switch.register([row], "cpu")
    try:
        assert (len(switch._libraries) == before) is expected
    finally:
        while len(switch._libraries) > before:
            switch._libraries.pop()._destroy()


def test_the_page_is_the_table() -> None:
    """Otherwise: python -m torch_deterministic_kernels > OPERATIONS.md."""
    assert PAGE.read_text() == markdown()
