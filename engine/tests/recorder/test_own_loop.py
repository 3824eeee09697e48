"""docs/own-loop.md: its examples run, and do what the page says.

The plain loop is end_to_end/test_installed.py's; others need other libraries.
"""

from pathlib import Path

import pytest

from seedbed import record
from tests import pages
from tests.running import printed


def rows(folder: Path) -> list[dict[str, str]]:
    return record.read_fingerprints(folder)


def test_a_resumed_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in the middle of an epoch: the same bits as without."""
    pages.run_here(monkeypatch, tmp_path, "resume", tmp_path / "a", 20)
    pages.run_here(monkeypatch, tmp_path, "resume", tmp_path / "b", 11)
    pages.run_here(monkeypatch, tmp_path, "resume", tmp_path / "b", 20)
    assert rows(tmp_path / "a") == rows(tmp_path / "b")
    assert len(rows(tmp_path / "a")) == 20
    assert record.read_metrics(tmp_path / "a") == record.read_metrics(tmp_path / "b")
    assert record.read_summary(tmp_path / "b")["resumes"][0]["step"] == 11


@pytest.mark.long
def test_several_processes(tmp_path: Path) -> None:
    """Two runs have the same bits, by the record of rank 0."""
    script = pages.script(tmp_path, "ddp")
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    for name in "ab":
        printed(*torchrun, str(script), str(tmp_path / name))
    assert rows(tmp_path / "a") == rows(tmp_path / "b")
    assert len(rows(tmp_path / "a")) == 8
    found = record.read_json(tmp_path / "a" / "environment.json")["processes"]
    assert found == {"count": 2, "bits_depend_on_count": 2}


def test_a_loop_with_an_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs in one process, whose generators stand elsewhere, have the same bits."""
    pages.run_here(monkeypatch, tmp_path, "rl", tmp_path / "a")
    pages.run_here(monkeypatch, tmp_path, "rl", tmp_path / "b")
    assert rows(tmp_path / "a") == rows(tmp_path / "b")
    assert len(rows(tmp_path / "a")) == 20
    assert record.read_summary(tmp_path / "a")["status"] == "finished"
