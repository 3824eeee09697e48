"""The table of versions: what is installed for another PyTorch, and what a row says."""

import re
from pathlib import Path

import versions

from tests.running import ROOT, command, refusal

SCRIPT = "engine/measure/versions.py"
REQUIREMENTS = (ROOT / "requirements.txt").read_text()


def names(pins: list[str]) -> set[str]:
    return {re.split("[=<>]", pin)[0] for pin in pins}


def test_another_torch_changes_no_other_pin() -> None:
    """Packages of CUDA and the like come with a PyTorch; a test that fails must not be numpy's."""
    pins = versions.pinned(REQUIREMENTS, None)
    other = versions.pinned(REQUIREMENTS, "2.11.0")
    assert {"torch==2.11.0", "torchvision"} == set(other) - set(pins)
    gone = names(pins) - names(other)
    assert {"triton", "setuptools"} <= gone
    assert all(re.match("triton|setuptools|cuda-|nvidia-", name) for name in gone), gone
    assert {"numpy", "hydra-core", "pytest"} <= names(other)


def test_a_row_says_how_many_tests_passed() -> None:
    """The time that they took stands in no table."""
    assert versions.outcome("=== 1 failed, 12 passed, 3 skipped in 61.02s (0:01:01) ===\n") == (
        "1 failed, 12 passed, 3 skipped"
    )
    assert versions.outcome("no tests ran in 0.01s\n") == "no tests ran"


def test_an_environment_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    """In one line, before anything is written; a folder of somebody else stays as it is."""
    other = tmp_path / "other"
    done = command(SCRIPT, str(other), "--python", "no-such-python", "--", "-x")
    assert refusal(done).startswith("--python: expected a Python that is installed")
    assert not other.exists()
    assert refusal(command(SCRIPT, str(tmp_path))).startswith("FOLDER: expected an environment")
