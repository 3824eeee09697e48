"""The report on a sweep, the comparison of two, and the statistics, on made-up run folders."""

import contextlib
import csv
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread
from scipy import stats

from seedbed.cli import sweep_report
from seedbed.errors import InputError
from seedbed.sweeps import groups, report, statistics
from tests.made_up_runs import edit_summary, write_result
from tests.running import called

ACCURACIES = (0.981, 0.984, 0.979, 0.990, 0.986)
LEFT_OUT = "1 of 6 runs are left out\n  5_seed=5: "


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a sweep over five seeds."""
    for seed, accuracy in enumerate(ACCURACIES):
        write_result(tmp_path / "sweep" / f"{seed}_seed={seed}", seed, accuracy=accuracy)
    return tmp_path / "sweep"


def only(folder: Path) -> groups.Group:
    [group] = groups.read(folder).groups
    return group


def described(*folders: Path) -> str:
    return report.describe(report.make(*map(groups.read, folders)))


def machine_readable(*words: object) -> Any:
    done = called(sweep_report.main, *map(str, words), "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_group_is_the_runs_that_differ_only_in_seeds(folder: Path) -> None:
    """Means agree with NumPy. A class's seed argument is a seed, too; a model is a setting."""
    assert only(folder).summary.n == 5
    assert only(folder).summary.mean == pytest.approx(np.mean(ACCURACIES))
    assert only(folder).summary.sd == pytest.approx(np.std(ACCURACIES, ddof=1))
    for name, seed, size in (("5", 5, 4), ("6", 6, 4), ("7", 7, 5)):
        path = write_result(folder / name, seed) / "config.yaml"
        transforms = f"  transforms:\n  - seed: {seed}\n    size: {size}\n"
        path.write_text(path.read_text().replace("data:\n", f"data:\n{transforms}"))
    write_result(folder / "8", model="lstm")
    assert [len(group.runs) for group in groups.read(folder).groups] == [5, 2, 1, 1]


def test_runs_are_in_the_order_of_their_numbers_or_names(tmp_path: Path) -> None:
    """A report exits with status 1 if none of its runs counts."""
    names = ["lr0.003", "lr0.03", "2_a", "10_a"]
    for name in names[::-1]:
        write_result(tmp_path / name, status="failed")
    assert [run.name for run in groups.read(tmp_path).runs] == names
    assert called(sweep_report.main, str(tmp_path)).returncode == 1


def test_sweep_csv_has_what_varies_and_every_metric(folder: Path) -> None:
    """Also the model's width (newcomer 10), floats with all digits, and runs that do not count."""
    path = write_result(folder / "5_seed=5", 5, status="failed", error="loss: not finite")
    config = (path / "config.yaml").read_text().replace("model:\n", "model:\n  width: 8\n")
    (path / "config.yaml").write_text(config)
    report.write(groups.read(folder))
    rows = list(csv.DictReader((folder / "sweep.csv").open()))
    assert [float(row["test_accuracy"]) for row in rows[:5]] == list(ACCURACIES)
    assert [row["seed"] for row in rows] == list("012345")
    assert [row["model.width"] for row in rows] == [""] * 5 + ["8"]
    assert "test_loss" in rows[0]
    assert rows[5]["problem"] == "failed loss: not finite"
    assert (rows[5]["test_accuracy"], rows[0]["test_loss"]) == ("", "0.1"), "no result"


def test_a_report_on_another_metric_overwrites_nothing(folder: Path) -> None:
    """Its plot is named after the metric, and sweep.csv is unchanged (newcomer 10)."""
    assert called(sweep_report.main, str(folder)).returncode == 0
    before = {path.name: path.read_bytes() for path in folder.glob("sweep*")}
    done = called(sweep_report.main, str(folder), "--metric", "test_loss")
    assert "test_loss" in done.stdout
    assert {name: (folder / name).read_bytes() for name in before} == before
    assert (folder / "sweep_test_loss.png").exists()
    done = called(sweep_report.main, str(folder), "--metric", "validation_f1")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_runs_that_did_not_finish_or_lack_the_metric_are_left_out(folder: Path) -> None:
    """They are listed and change no number. Negative control: the run counts once finished."""
    before = only(folder).summary
    run = write_result(folder / "5_seed=5", 5, accuracy=0.1)
    metrics = json.loads((run / "summary.json").read_text())["metrics"]
    for status in ("failed", "interrupted", "running"):
        edit_summary(run, status=status)
        assert only(folder).summary == before
        assert described(folder).startswith(f"{LEFT_OUT}{status}")
    lacking = [{"validation_accuracy": value} for value in (None, float("nan"), "much")]
    for values in (*lacking, {**metrics, "test_accuracy": float("nan")}):  # validation's is unused
        edit_summary(run, status="finished", metrics=values)
        assert only(folder).summary == before
    edit_summary(run, metrics=metrics)
    assert only(folder).summary.n == 6
    edit_summary(run, status="failed", metrics=None)  # before its first step
    assert described(folder).startswith(f"{LEFT_OUT}failed")
    (run / "config.yaml").write_text("!!python/object/apply:a []")
    assert described(folder).startswith(f"{LEFT_OUT}unread")
    assert only(folder).summary == before
    # A job of the plan that was refused, or never started.
    shutil.rmtree(run)
    jobs = {str(n): [f"seed={n}", "data=mnist5k"] for n in range(6)}
    (folder / "sweep.json").write_text(json.dumps({"varied": ["seed"], "jobs": jobs}))
    assert described(folder).startswith(f"{LEFT_OUT}no record")


@pytest.mark.parametrize("setting", ["error", "warn"])
def test_equal_seeds_with_other_weights_come_first(folder: Path, setting: str) -> None:
    """The warning comes first, with exit status 1, for a preset of any name that promises bits.
    Negative controls: a preset that does not (`warn`); equal weights."""
    write_result(folder / "5_seed=3", 3, accuracy=0.790, weights="f" * 16)
    write_result(folder / "6_seed=4", 4, accuracy=0.986)
    for path in folder.glob("*/config.yaml"):
        path.write_text(path.read_text().replace("istic: error", f"istic: {setting}"))
    line = "NOT REPRODUCIBLE: 1 of 2 repeated seeds gave different weights; differences below 0.2"
    done = called(sweep_report.main, str(folder))
    assert (done.returncode, done.stdout.startswith(line)) == (
        (1, True) if setting == "error" else (0, False)
    )
    assert only(folder).summary.n == 5, "a seed is one value, however often it ran"


@pytest.mark.parametrize("what", ["versions", "imported_files", "gpu"])
def test_other_code_or_machines_break_no_promise(folder: Path, what: str) -> None:
    """Negative control: equal ones do. A mean over several versions of the code has a note."""
    run = write_result(folder / "5_seed=3", 3, weights="f" * 16)
    for path, value in ((run, "a"), (folder / "3_seed=3", "a")):
        (path / "environment.json").write_text(json.dumps({what: {"x": value}, "env": value}))
    assert "NOT REPRODUCIBLE" in described(folder)
    (run / "environment.json").write_text(json.dumps({what: {"x": "b"}}))
    assert "NOT REPRODUCIBLE" not in described(folder)
    assert ("runs had different code" in described(folder)) is (what == "imported_files")


def test_groups_of_a_sweep_are_compared_seed_by_seed(tmp_path: Path) -> None:
    """Pairs remove the spread over shared seeds. Negative control: a group with other seeds."""
    for seed, accuracy in enumerate((0.90, 0.95, 0.80)):
        write_result(tmp_path / f"a{seed}", seed, model="lstm", accuracy=accuracy)
        write_result(
            tmp_path / f"b{seed}", seed, model="rnn", accuracy=accuracy + 0.01 + seed * 1e-4
        )
        write_result(tmp_path / f"c{seed}", seed + 9, model="gru", accuracy=accuracy + 0.01)
    found = machine_readable(tmp_path)
    paired, unpaired = found["comparisons"]
    assert (paired["a"], paired["b"], paired["verdict"]) == ("model=lstm", "model=rnn", "better")
    assert (paired["paired"], paired["difference"]["n"]) == (True, 3)
    assert (unpaired["paired"], unpaired["verdict"]) == (False, "undecided")
    assert unpaired["seeds_to_decide"] > 100
    assert found["groups"][0]["means"]["validation_accuracy"] == pytest.approx(0.95 * 2.65 / 2.85)


@pytest.mark.parametrize(
    ("gain", "b_seed", "metric", "verdict"),
    [
        (0.002, 0, "test_accuracy", "better"),
        (-0.002, 0, "test_accuracy", "worse"),
        (-2e-5, 0, "test_accuracy", "undecided"),
        (0.1, 9, "test_accuracy", "better"),
        # Lower is better for a loss; for an unknown metric, only higher or lower is known.
        (0.002, 0, "test_loss", "worse"),
        (0.002, 0, "test_x", "higher"),
    ],
)
def test_two_sweeps_have_a_verdict(
    gain: float, b_seed: int, metric: str, verdict: str, tmp_path: Path
) -> None:
    """It is that of B against A, paired if seeds are equal, with the seeds it takes to decide."""
    a, b = tmp_path / "a", tmp_path / "b"
    for seed, value in enumerate(ACCURACIES):
        write_result(a / str(seed), seed, metrics={metric: value})
        metrics = {metric: value + (gain + 1e-5 * seed)}
        write_result(b / str(seed), b_seed + seed, model="lstm", metrics=metrics)
    found = machine_readable(a, b, "--metric", metric)
    [compared] = found["comparisons"]
    assert (found["verdict"], compared["paired"]) == (verdict, b_seed == 0)
    assert compared["difference"]["mean"] == pytest.approx(gain + 2e-5)
    assert (compared["seeds_to_decide"] is not None) == (verdict == "undecided" and gain != -2e-5)


def test_sweeps_without_a_common_group_are_refused(folder: Path) -> None:
    """A sweep of one group is not compared with two others: exit status 2, one line."""
    other = folder.parent / "other"
    for seed, model in enumerate(("gru", "lstm")):
        write_result(other / str(seed), seed, model=model)
    done = called(sweep_report.main, str(folder), str(other))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


@pytest.fixture
def rates(tmp_path: Path) -> Path:
    """Return a sweep over rates: 0.004 is best on validation data, 0.001 on the test set."""
    values = {0.001: (0.8, 0.91), 0.004: (0.9, 0.6), 0.01: (0.7, 0.5)}
    for number, (rate, (validation, test)) in enumerate(values.items()):
        for seed in range(3):
            write_rate(tmp_path / "a" / f"{3 * number + seed}_", seed, rate, validation, test)
    return tmp_path / "a"


def write_rate(run: Path, seed: int, rate: float, validation: float, test: float) -> None:
    noise = seed * rate
    metrics = {"validation_accuracy": validation + noise, "test_accuracy": test + noise}
    metrics["last_test_accuracy"] = test
    config = write_result(run, seed, metrics=metrics) / "config.yaml"
    config.write_text(config.read_text().replace("lr: 0.003", f"lr: {rate}"))


def test_groups_are_chosen_by_validation_and_only_the_best_shows_its_test_value(
    rates: Path,
) -> None:
    """In the table, --json, sweep.csv and the plot's metric. `--metric test_accuracy` shows all,
    with one line of warning. Negative control: one group reports its test value."""
    found = machine_readable(rates)
    assert [row["metric"] for row in found["groups"]] == ["validation_accuracy"] * 3
    assert [row["rank"] for row in found["groups"]] == [2, 1, 3]
    for name in ("test_accuracy", "last_test_accuracy"):
        assert [name in row["means"] for row in found["groups"]] == [False, True, False]
    assert [each["verdict"] for each in found["comparisons"]] == ["better", "worse"]
    text = report.describe(report.write(groups.read(rates)))
    assert "best by validation_accuracy: optimizer.lr=0.004; test_accuracy 0.604" in text
    assert "0.911" not in text
    table = list(csv.DictReader((rates / "sweep.csv").open()))
    assert [row["test_accuracy"] != "" for row in table] == [False] * 3 + [True] * 3 + [False] * 3
    done = called(sweep_report.main, str(rates), "--metric", "test_accuracy")
    assert done.stdout.count("warning: to choose a group by test_accuracy") == 1
    assert "best by test_accuracy: optimizer.lr=0.001" in done.stdout
    assert "0.51" in done.stdout
    alone = machine_readable(rates, "--only", "optimizer.lr=0.001")
    assert [row["metric"] for row in alone["groups"]] == ["test_accuracy"], "negative control"
    assert alone["notes"] == []


def test_the_best_group_is_compared_with_new_code(rates: Path) -> None:
    """Groups that only one sweep has are named. A pair of groups is compared on the test set, a
    choice that was made before; several pairs are compared on validation data."""
    b = rates.parent / "b"
    for seed in range(3):
        write_rate(b / f"{seed}_", seed, 0.004, 0.7 + seed * 1e-3, 0.7 + seed * 1e-3)
    found = machine_readable(rates, b)
    assert [row["metric"] for row in found["groups"]] == ["test_accuracy"] * 2
    assert found["verdict"] == "better"
    assert [note.split(": ")[1] for note in found["notes"]] == [
        "optimizer.lr=0.001",
        "optimizer.lr=0.01",
    ]
    for seed in range(3):
        write_rate(b / f"{3 + seed}_", seed, 0.001, 0.7 + seed * 1e-3, 0.99)
    found = machine_readable(rates, b)
    assert {row["metric"] for row in found["groups"]} == {"validation_accuracy"}
    assert found["verdict"] == "worse"
    named = ("--only", "optimizer.lr=0.004", "--only", "model=cnn")
    assert machine_readable(rates, b, *named)["verdict"] == "better"
    for words in (["--only", "optimizer.lr=7"], ["--only", "="]):
        done = called(sweep_report.main, str(rates), str(b), *words)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert done.stderr.startswith("error: --only: expected ")


def test_runs_that_share_seeds_are_not_independent(tmp_path: Path) -> None:
    """Runs whose streams vary one at a time have no interval; a note names seeds without effect.
    Negative control: all streams vary together."""
    for number, seeds in enumerate(({}, {"init": 1}, {"order": 1})):
        write_result(tmp_path / "a" / str(number), seeds=seeds, weights="0" * 16)
        write_result(tmp_path / "b" / str(number), number, accuracy=0.9 + 0.01 * number)
    assert not only(tmp_path / "a").is_independent
    assert "share the seeds of some streams" in described(tmp_path / "a")
    assert "all seeds gave the same weights" in described(tmp_path / "a")
    assert only(tmp_path / "b").summary.interval is not None
    assert "seeds" not in described(tmp_path / "b")


FOLDS = np.random.default_rng(0).uniform(0.9, 0.99, (3, 5))  # by seed and fold


@pytest.mark.parametrize(("seeds", "expected"), [(1, FOLDS[0]), (3, FOLDS.mean(axis=1))])
def test_folds_are_pooled(tmp_path: Path, seeds: int, expected: np.ndarray) -> None:
    """With one seed, each fold is a value; with several, each seed's value is the mean of its
    folds. A seed that lacks folds is left out."""
    for seed, fold in np.ndindex(seeds, 5):
        place = tmp_path / f"{fold}_{seed}"
        write_result(place, seed, fold=fold, accuracy=float(FOLDS[seed, fold]))
    assert sorted(only(tmp_path).values.values()) == pytest.approx(sorted(expected))
    assert only(tmp_path).is_independent
    if seeds == 3:
        (tmp_path / "4_2" / "config.yaml").unlink()
        assert sorted(only(tmp_path).values.values()) == pytest.approx(sorted(expected[:2]))
        for place in ("0_1", "1_0"):  # each seed now lacks another fold
            (tmp_path / place / "config.yaml").unlink()
        assert only(tmp_path).summary.n == 1
        assert "2 of 3 seeds lack folds" in described(tmp_path)


def test_entries_of_another_type_give_no_traceback(tmp_path: Path) -> None:
    """The result is a report or an InputError. Negative control: a report of the original."""
    path = write_result(tmp_path / "run") / "summary.json"
    whole = json.loads(path.read_text())
    assert "| mean" in described(tmp_path)
    for key in whole:
        path.write_text(json.dumps(whole | {key: {"a": None}}))
        with contextlib.suppress(InputError):
            report.describe(report.make(groups.read(tmp_path)))


def test_what_a_stranger_wrote_is_printed_escaped(tmp_path: Path) -> None:
    """The plot is drawn, too. A cyclic symlink is not followed; one to a run counts as a run."""
    write_result(tmp_path / "elsewhere")
    sweep = tmp_path / "sweep"
    write_result(sweep / "0\x1b[31m", status="failed", error="\x1b[2J")
    write_result(sweep / "1", model="\x1b[2J" + r"$\frac$" + "x" * 999)
    write_result(sweep / "2")
    (sweep / "a").symlink_to(sweep)
    (sweep / "b").symlink_to(tmp_path / "elsewhere")
    assert len(groups.read(sweep).runs) == 4
    assert "\x1b" not in described(sweep)
    report.write(groups.read(sweep))
    assert imread(sweep / "sweep.png").std() > 0.04  # of 1


X, Y = np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 9.0])


def test_a_paired_difference_has_another_interval_than_an_unpaired_one() -> None:
    """The t quantile is 4.3027 for 2 degrees of freedom, 3.7998 for Welch's 2.309. Without spread
    there is no interval: one value, or differences of pairs that are equal up to rounding."""
    paired = statistics.difference(X, Y, paired=True)  # 1, 2 and 6
    assert (paired.n, paired.mean, paired.sd) == (3, 3.0, pytest.approx(math.sqrt(7)))
    assert paired.interval == pytest.approx((3 - 6.5724, 3 + 6.5724), abs=1e-3)
    welch = statistics.difference(X, Y, paired=False)
    assert (welch.n, welch.mean, welch.sd) == (3, 3.0, pytest.approx(math.sqrt((1 + 13) / 2)))
    assert welch.interval == pytest.approx((3 - 8.208, 3 + 8.208), abs=1e-2)
    assert statistics.mean_of(np.array([1.0])) == statistics.Estimate(1, 1.0)
    assert statistics.difference(0.1 * X, 0.1 * X + 0.1, paired=True).interval is None
    assert statistics.difference(0.1 * X, 0.1 * X + 0.1, paired=False).interval is not None


@pytest.mark.parametrize(("paired", "expected"), [(False, 64), (True, 34)])
def test_seeds_to_decide_agree_with_the_exact_power(paired: bool, expected: int) -> None:
    """The result is the smallest n with a power of 80 %, by the noncentral t distribution."""

    def power(n: int) -> float:
        freedom, shift = (n - 1, math.sqrt(n)) if paired else (2 * n - 2, math.sqrt(n / 2))
        return float(stats.nct.sf(stats.t.ppf(0.975, freedom), freedom, 0.5 * shift))

    assert statistics.seeds_to_decide(-0.5, 1.0, paired) == expected
    assert power(expected - 1) < 0.8 <= power(expected)
