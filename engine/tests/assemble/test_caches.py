"""Caches that data sets make from seeded draws, and read whatever the seed is."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from seedbed import record
from seedbed.assemble import caches
from tests.run.runs import begun, of_method, work
from tests.running import ROOT
from tests.tiny import FEATURES
from tests.tiny.data import Noisy


@pytest.fixture(autouse=True)
def nothing_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what builds of this process opened, before and afterwards."""
    monkeypatch.setattr(caches, "_opened", {})


class Cached(Noisy):
    """Noisy samples plus a table that is drawn once, and kept in a file."""

    def __init__(self, samples: int, file: str, how: str = "torch") -> None:
        super().__init__(samples)
        path = Path(file)
        if not path.exists():
            path.with_suffix(".raw").write_text("equal for all seeds")
            table = torch.randn(FEATURES)
            if how == "torch":
                torch.save(obj=table, f=path)
            else:
                with open(f"{path}.tmp", "wb") as new:
                    np.save(new, table.numpy())
                os.replace(f"{path}.tmp", path)
        path.with_suffix(".raw").read_text()
        path.with_suffix(".json").write_text("{}")  # in every build, also after the draws
        self.table = torch.load(path) if how == "torch" else torch.tensor(np.load(path, "r"))

    def __getitem__(self, index: int) -> Any:
        inputs, target = super().__getitem__(index)
        return torch.as_tensor(inputs) + self.table, target


def ran(folder: Path, cache: Path, seed: int, how: str = "torch") -> Path:
    """Train a run as a process of its own would, in which no build has opened a file yet."""
    caches._opened.clear()
    words = (f"data.train._target_={__name__}.Cached", f"+data.train.file={cache}",
             f"+data.train.how={how}", f"seeds.data={seed}")  # fmt: skip
    assert work(begun(folder, *of_method("FineTuning", *words))) == 0
    return folder


@pytest.mark.usefixtures("this_process_trains")
@pytest.mark.parametrize("how", ["torch", "renamed"])
def test_a_cache_that_was_made_under_another_seed_is_named(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line. Negative controls: the same seed; a file that is written before the first draw;
    one that every build writes; a cache that is made anew."""
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.setenv("SEEDBED_PROJECT", str(tmp_path))
    cache = tmp_path / "x.pt"
    ran(tmp_path / "a", cache, 0, how)
    ran(tmp_path / "b", cache, 0, how)
    assert "warning" not in capsys.readouterr().out
    ran(tmp_path / "c", cache, 1, how)
    lines = [line for line in capsys.readouterr().out.splitlines() if "warning" in line]
    assert lines == [
        f"warning: data: {cache} was made with seeds.data=0, and is read with 1; delete it, or put "
        "the seed into its name"
    ]
    cache.unlink()
    ran(tmp_path / "d", cache, 1, how)
    assert "warning" not in capsys.readouterr().out
    records = [record.read_json(tmp_path / x / "environment.json") for x in "abcd"]
    a, b, c, d = (each["caches_sha256"][str(cache)] for each in records)
    assert a == b == c != d
    assert str(cache.with_suffix(".raw")) not in records[0]["caches_sha256"]
    assert torch.save.__module__ == "torch.serialization", "it is restored"


def test_a_project_that_cannot_be_written_gets_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEEDBED_PROJECT", str(tmp_path))
    (tmp_path / ".seedbed").touch()  # not a folder
    with caches.noticed():
        Cached(3, str(tmp_path / "x.pt"))
    digests, lines = caches.check(0)
    assert digests.keys() == {str(tmp_path / "x.pt"), str(tmp_path / "x.json")}
    assert len(lines) == 1
    assert "seeds of caches are not noted" in lines[0]


def test_a_cache_that_one_record_does_not_know_alters_no_bits() -> None:
    """Negative control: two contents."""

    def altering(a: dict[str, str], b: dict[str, str]) -> list[bool]:
        origins = [record.Origin({}, {"caches_sha256": each}) for each in (a, b)]
        return [change.alters_bits for change in record.changes(*origins)]

    assert altering({"x": "1"}, {}) == [False]
    assert altering({"x": "1"}, {"x": "2"}) == [True]
