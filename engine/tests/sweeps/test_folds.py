"""Folds of cross-validation are pooled in a sweep's report, as seeds are."""

import csv
from pathlib import Path

import numpy as np
import pytest

from seedbed.sweeps import comparison, groups, report
from seedbed.sweeps import summary as sweep_summary
from seedbed.sweeps.differences import differences
from tests.fake_runs import write_run

VALUES = np.random.default_rng(0).uniform(0.9, 0.99, (3, 5))  # by seed and fold


def write_sweep(folder: Path, seeds: int, folds: int = 5, gain: float = 0.0) -> Path:
    for seed in range(seeds):
        for fold in range(folds):
            accuracy = float(VALUES[seed, fold]) + gain
            write_run(folder / f"{fold}_{seed}", seed, fold=fold, accuracy=accuracy)
    return folder


def described(folder: Path) -> tuple[str, list[sweep_summary.Summary]]:
    found = groups.read(folder)
    summaries = [sweep_summary.summarise(group) for group in found.groups]
    return report.describe(found, summaries), summaries


def test_the_folds_of_one_seed_are_one_group(tmp_path: Path) -> None:
    """Mean and spread over the folds, the best and worst by fold, and no word of one seed only."""
    text, (summary,) = described(write_sweep(tmp_path / "sweep", 1))
    assert summary.n == 5
    assert summary.mean == pytest.approx(VALUES[0].mean())
    assert summary.sd == pytest.approx(VALUES[0].std(ddof=1))
    assert summary.maximum_seed == f"0 fold={VALUES[0].argmax()}"
    assert summary.seeds_for_small_difference is None, "there are no more folds to run"
    assert "5 folds of one seed" in text
    for absent in ("One seed only", "configurations", "NOISE FLOOR", "comes from"):
        assert absent not in text


def test_each_seed_is_the_mean_of_its_folds(tmp_path: Path) -> None:
    """n counts seeds; how far folds and seeds lie apart is a table of its own."""
    text, (summary,) = described(write_sweep(tmp_path / "sweep", 3))
    assert summary.n == 3
    assert summary.mean == pytest.approx(VALUES.mean())
    assert summary.sd == pytest.approx(VALUES.mean(axis=1).std(ddof=1))
    assert "5 folds of each seed" in text
    assert "Streams vary one at a time" not in text
    [group] = groups.read(tmp_path / "sweep").groups
    rows = {row.name: row for row in sweep_summary.sources(group)}
    assert rows["fold"].sd == pytest.approx(np.sqrt(VALUES.var(axis=1, ddof=1).mean()))
    assert rows["all together"].sd == pytest.approx(np.sqrt(VALUES.var(axis=0, ddof=1).mean()))
    assert (rows["fold"].runs, rows["all together"].runs) == (15, 15)


def test_a_seed_without_all_its_folds_is_no_mean(tmp_path: Path) -> None:
    """It would be the mean of other samples than the rest."""
    folder = write_sweep(tmp_path / "sweep", 3)
    for name in ("config.yaml", "summary.json", "metrics.csv"):
        (folder / "4_2" / name).unlink()
    _, (summary,) = described(folder)
    assert summary.n == 2
    assert summary.mean == pytest.approx(VALUES[:2].mean())


def test_settings_are_told_apart_and_folds_are_not(tmp_path: Path) -> None:
    """Another model is another group; `fold` of anything but the data is a setting."""
    folder = write_sweep(tmp_path / "sweep", 1)
    for fold in range(5):
        write_run(folder / f"lstm_{fold}", fold=fold, model="lstm", accuracy=0.9)
    _, summaries = described(folder)
    found = {(each.group, each.n) for each in summaries}
    assert found == {("model=cnn", 5), ("model=lstm", 5)}
    other = write_run(tmp_path / "other" / "0", accuracy=0.9) / "config.yaml"
    write_run(tmp_path / "other" / "1", accuracy=0.9)
    other.write_text(other.read_text().replace("model:\n", "model:\n  fold: 3\n"))
    assert len(groups.read(tmp_path / "other").groups) == 2


def test_runs_of_one_seed_and_fold_must_have_the_same_bits(tmp_path: Path) -> None:
    """Two of them that differ break the promise; other folds are other runs."""
    folder = write_sweep(tmp_path / "sweep", 1)
    assert "NOISE FLOOR" not in described(folder)[0]
    write_run(folder / "again", fold=2, accuracy=0.5, weights="f" * 16)
    assert "NOISE FLOOR: 1 of 1 seeds that ran more than once" in described(folder)[0]


def test_a_fold_that_changes_nothing_is_named(tmp_path: Path) -> None:
    """A data set that leaves data.fold out trains the same every time."""
    for fold in range(3):
        write_run(tmp_path / "sweep" / str(fold), fold=fold, weights="a" * 16)
    assert "ended with the same weights: fold changed nothing" in described(tmp_path / "sweep")[0]


def test_the_tables_name_the_fold(tmp_path: Path) -> None:
    """sweep.csv has a column for it, where there are folds."""
    folder = write_sweep(tmp_path / "sweep", 2, folds=2)
    report.write(groups.read(folder))
    rows = list(csv.DictReader((folder / "sweep.csv").open()))
    assert [(row["seed"], row["fold"]) for row in rows] == [
        ("0", "0"), ("1", "0"), ("0", "1"), ("1", "1"),
    ]  # fmt: skip
    plain = tmp_path / "plain"
    write_run(plain / "0")
    assert "fold" not in report.runs_csv(groups.read(plain)).splitlines()[0]


@pytest.mark.parametrize(("seeds", "counted"), [(1, "5 folds in both"), (3, "3 seeds in both")])
def test_two_sweeps_are_paired_by_fold(tmp_path: Path, seeds: int, counted: str) -> None:
    """The same gain in each fold is seen, however far the folds lie apart."""
    a = groups.read(write_sweep(tmp_path / "a", seeds))
    b = groups.read(write_sweep(tmp_path / "b", seeds, gain=0.005))
    for each in b.groups[0].runs:
        assert each.seeds in a.groups[0].values
    [paired, _] = differences(a.groups[0], b.groups[0])
    assert paired.paired
    assert paired.mean == pytest.approx(0.005)
    assert counted in comparison.compare(a, b)
