"""Which line of a traceback is the user's."""

import json
import traceback
from pathlib import Path
from types import FrameType

import pytest
import torch
import torch_deterministic_kernels

from seedbed import project
from tests.running import ENGINE


def frame_of(file: Path | str) -> tuple[FrameType, int]:
    """Return the frame of an error in line 3 of a file."""
    program = compile("\n\nraise ValueError('here')", str(file), "exec")
    with pytest.raises(ValueError, match="here") as caught:
        exec(program)
    return [*traceback.walk_tb(caught.value.__traceback__)][-1]


def line_in(*files: Path | str, or_of_a_library: bool = False) -> str:
    return project.line_in(map(frame_of, files), or_of_a_library)


ENGINES = ENGINE / "src" / "seedbed" / "training" / "step.py"
KERNELS = Path(torch_deterministic_kernels.__file__)
PYTORCH = Path(torch.__file__).parent / "nn" / "modules" / "module.py"
LIBRARY = Path(pytest.__file__)


@pytest.mark.parametrize(
    "file", [ENGINES, KERNELS, PYTORCH, json.__file__, "<string>"], ids=str
)
def test_lines_of_engine_kernels_pytorch_and_python_are_not_the_users(
    file: Path | str,
) -> None:
    """Negative control: a file of a project, called by it or calling it."""
    assert line_in(file, or_of_a_library=True) == ""
    assert line_in("/project/src/model.py", file) == "/project/src/model.py:3"
    assert line_in(file, "/project/src/model.py") == "/project/src/model.py:3"


def test_a_line_of_a_library_counts_where_the_user_has_none() -> None:
    assert line_in(ENGINES, LIBRARY, PYTORCH) == ""
    assert line_in(ENGINES, LIBRARY, PYTORCH, or_of_a_library=True) == f"{LIBRARY}:3"
    both = ("/project/src/model.py", LIBRARY)
    assert line_in(*both, or_of_a_library=True) == "/project/src/model.py:3"


def test_the_line_of_an_error_is_the_last_one_of_the_users() -> None:
    """Negative control: an error without a traceback."""
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("{")
    assert project.line_of(caught.value).startswith(f"{__file__}:")
    assert project.line_of(ValueError("never raised")) == ""
