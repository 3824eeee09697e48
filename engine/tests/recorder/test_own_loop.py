"""docs/own-loop.md: its examples that need no other library run, and do what the page says."""

import subprocess
import sys
from pathlib import Path

import pytest

from seedbed import compare, record
from tests import own_loop
from tests.running import TEMPLATE


def rows(folder: Path) -> list[dict[str, str]]:
    return record.read_fingerprints(folder)


@pytest.mark.long
def test_a_plain_loop(tmp_path: Path) -> None:
    """As the page's commands run it; another seed is another run."""
    script = own_loop.write(tmp_path, "plain")
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        words = [sys.executable, "-W", "ignore", str(script), str(tmp_path / name), str(seed)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stderr
    a, b, c = (compare.read(tmp_path / name) for name in "abc")
    assert compare.compare(a, b).difference is None
    difference = compare.compare(a, c).difference
    assert difference is not None
    assert (difference.step, difference.stage) == (1, "sample_ids")
    assert record.flatten(a.origin.environment)["flags.on_nondeterministic"] == "error"


def test_a_resumed_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in the middle of an epoch: the same bits as without."""
    own_loop.run(monkeypatch, tmp_path, "resume", tmp_path / "a", 20)
    own_loop.run(monkeypatch, tmp_path, "resume", tmp_path / "b", 11)
    own_loop.run(monkeypatch, tmp_path, "resume", tmp_path / "b", 20)
    assert rows(tmp_path / "a") == rows(tmp_path / "b")
    assert len(rows(tmp_path / "a")) == 20
    assert record.read_summary(tmp_path / "b")["resumes"][0]["step"] == 11


@pytest.mark.long
def test_several_processes(tmp_path: Path) -> None:
    """Two runs have the same bits, by the record of rank 0."""
    script = own_loop.write(tmp_path, "ddp")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    for name in "ab":
        done = subprocess.run(
            [*torchrun, str(script), str(tmp_path / name)],
            cwd=TEMPLATE,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert rows(tmp_path / "a") == rows(tmp_path / "b")
    assert len(rows(tmp_path / "a")) == 8
    found = record.read_json(tmp_path / "a" / "environment.json")["processes"]
    assert found == {"count": 2, "bits_depend_on_count": 2}


def test_a_loop_with_an_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs in one process, whose generators stand elsewhere, have the same bits."""
    own_loop.run(monkeypatch, tmp_path, "rl", tmp_path / "a")
    own_loop.run(monkeypatch, tmp_path, "rl", tmp_path / "b")
    assert rows(tmp_path / "a") == rows(tmp_path / "b")
    assert len(rows(tmp_path / "a")) == 20
    assert record.read_summary(tmp_path / "a")["status"] == "finished"
