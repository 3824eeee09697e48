"""The report on a sweep, the comparison of two, and the statistics, on made-up run
folders."""

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
from seedbed.sweeps import groups, report, show
from tests.made_up_runs import edit_summary, write_result, write_results
from tests.running import called

ACCURACIES = (0.981, 0.984, 0.979, 0.990, 0.986)
LEFT_OUT = "1 of 6 runs are left out\n  5_seed=5: "


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a sweep over five seeds."""
    for seed, accuracy in enumerate(ACCURACIES):
        write_result(
            tmp_path / "sweep" / f"{seed}_seed={seed}", seed, accuracy=accuracy
        )
    return tmp_path / "sweep"


def only(folder: Path) -> groups.Group:
    [group] = groups.read(folder).groups
    return group


def described(*folders: Path) -> str:
    return show.describe(report.make(*map(groups.read, folders)))


def machine_readable(*words: object) -> Any:
    done = called(sweep_report.main, *map(str, words), "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_group_is_the_runs_that_differ_only_in_seeds(folder: Path) -> None:
    """Means agree with NumPy. A class's seed argument is a seed, too; a model is a
    setting."""
    assert only(folder).mean.n == 5
    assert only(folder).mean.mean == pytest.approx(np.mean(ACCURACIES))
    assert only(folder).mean.sd == pytest.approx(np.std(ACCURACIES, ddof=1))
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
    """Also the model's width (newcomer 10), floats with all digits, and runs that do
    not count."""
    path = write_result(
        folder / "5_seed=5", 5, status="failed", error="loss: not finite"
    )
    config = (
        (path / "config.yaml").read_text().replace("model:\n", "model:\n  width: 8\n")
    )
    (path / "config.yaml").write_text(config)
    show.write(groups.read(folder))
    rows = list(csv.DictReader((folder / "sweep.csv").open()))
    assert [float(row["validation_accuracy"]) for row in rows[:5]] == list(ACCURACIES)
    assert [row["seed"] for row in rows] == list("012345")
    assert [row["model.width"] for row in rows] == [""] * 5 + ["8"]
    assert not any(name.startswith("test_") for name in rows[0])
    assert rows[5]["problem"] == "failed loss: not finite"
    assert rows[5]["validation_accuracy"] == "", "no result"


def test_a_report_on_another_metric_overwrites_nothing(folder: Path) -> None:
    """Its plot is named after the metric, and sweep.csv is unchanged (newcomer 10)."""
    assert called(sweep_report.main, str(folder)).returncode == 0
    before = {path.name: path.read_bytes() for path in folder.glob("sweep*")}
    # one group: no choice
    done = called(sweep_report.main, str(folder), "--metric", "test_loss")
    assert "test_loss" in done.stdout
    assert {name: (folder / name).read_bytes() for name in before} == before
    assert (folder / "sweep_test_loss.png").exists()
    done = called(sweep_report.main, str(folder), "--metric", "validation_f1")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_runs_that_did_not_finish_or_lack_the_metric_are_left_out(folder: Path) -> None:
    """They are listed and change no number. Negative control: the run counts once
    finished."""
    before = only(folder).mean
    run = write_result(folder / "5_seed=5", 5, accuracy=0.1)
    metrics = {"validation_accuracy": 0.1, "test_accuracy": 0.1}
    for status in ("failed", "interrupted", "running"):
        edit_summary(run, status=status)
        assert only(folder).mean == before
        shown = "killed" if status == "running" else status  # no process holds its lock
        assert described(folder).startswith(f"{LEFT_OUT}{shown}")
    edit_summary(run, status="finished")
    for value in (None, float("nan"), "much"):
        write_results(run, {**metrics, "validation_accuracy": value})
        assert only(folder).mean == before
    write_results(run, {**metrics, "test_accuracy": float("nan")})
    assert only(folder).mean.n == 6
    edit_summary(run, status="failed", metrics=None)  # before its first step
    assert described(folder).startswith(f"{LEFT_OUT}failed")
    (run / "config.yaml").write_text("!!python/object/apply:a []")
    assert described(folder).startswith(f"{LEFT_OUT}unread")
    assert only(folder).mean == before
    # A job of the plan that was refused, or never started.
    shutil.rmtree(run)
    jobs = {str(n): [f"seed={n}", "data=mnist5k"] for n in range(6)}
    (folder / "sweep.json").write_text(json.dumps({"varied": ["seed"], "jobs": jobs}))
    assert described(folder).startswith(f"{LEFT_OUT}no record")


@pytest.mark.parametrize("setting", ["error", "warn"])
def test_equal_seeds_with_other_weights_come_first(folder: Path, setting: str) -> None:
    """The warning comes first, with exit status 1, for a preset of any name that
    promises bits. Negative controls: a preset that does not (`warn`); equal weights."""
    write_result(folder / "5_seed=3", 3, accuracy=0.790, weights="f" * 16)
    write_result(folder / "6_seed=4", 4, accuracy=0.986)
    for path in folder.glob("*/config.yaml"):
        path.write_text(path.read_text().replace("istic: error", f"istic: {setting}"))
    line = (
        "NOT REPRODUCIBLE: 1 of 2 repeated seeds gave different weights; differences"
        " below 0.2"
    )
    done = called(sweep_report.main, str(folder))
    assert (done.returncode, done.stdout.startswith(line)) == (
        (1, True) if setting == "error" else (0, False)
    )
    assert only(folder).mean.n == 5, "a seed is one value, however often it ran"


@pytest.mark.parametrize("what", ["versions", "imported_files", "gpu", "files_sha256"])
def test_other_code_data_or_machines_break_no_promise(folder: Path, what: str) -> None:
    """Negative control: equal ones do. A mean over several versions of the code has a
    note."""
    run = write_result(folder / "5_seed=3", 3, weights="f" * 16)

    def write(path: Path, value: str) -> None:
        entry: Any = [{"x": value}] if what == "gpu" else {"x": value}
        (path / "environment.json").write_text(
            json.dumps({what: entry, "env": {"x": value}})
        )

    for path in (run, folder / "3_seed=3"):
        write(path, "a")
    assert "NOT REPRODUCIBLE" in described(folder)
    write(run, "b")
    assert "NOT REPRODUCIBLE" not in described(folder)
    is_noted = "runs had different code: x" in described(folder)
    assert is_noted is (what == "imported_files")


def test_groups_of_a_sweep_are_compared_seed_by_seed(tmp_path: Path) -> None:
    """Pairs remove the spread over shared seeds. Negative control: a group with other
    seeds."""
    for seed, accuracy in enumerate((0.90, 0.95, 0.80)):
        write_result(tmp_path / f"a{seed}", seed, model="lstm", accuracy=accuracy)
        write_result(
            tmp_path / f"b{seed}",
            seed,
            model="rnn",
            accuracy=accuracy + 0.01 + seed * 1e-4,
        )
        write_result(
            tmp_path / f"c{seed}", seed + 9, model="gru", accuracy=accuracy + 0.01
        )
    found = machine_readable(tmp_path)
    paired, unpaired = found["comparisons"]
    assert (paired["a"], paired["b"], paired["verdict"]) == (
        "model=lstm",
        "model=rnn",
        "better",
    )
    assert (paired["paired"], paired["difference"]["n"]) == (True, 3)
    assert (unpaired["paired"], unpaired["verdict"]) == (False, "undecided")
    assert unpaired["seeds_to_decide"] > 100
    assert unpaired["seeds_still_needed"] == unpaired["seeds_to_decide"] - 3
    assert found["groups"][0]["means"]["validation_accuracy"] == pytest.approx(
        0.95 * 2.65 / 2.85
    )


@pytest.mark.parametrize(
    ("gain", "b_seed", "metric", "verdict"),
    [
        (0.002, 0, "validation_accuracy", "better"),
        (-0.002, 0, "validation_accuracy", "worse"),
        (-2e-5, 0, "validation_accuracy", "undecided"),
        (0.1, 9, "validation_accuracy", "better"),
        # Lower is better for a loss; for an unknown metric, only higher or lower is
        # known.
        (0.002, 0, "validation_loss", "worse"),
        (0.002, 0, "validation_x", "higher"),
    ],
)
def test_two_sweeps_have_a_verdict(
    gain: float, b_seed: int, metric: str, verdict: str, tmp_path: Path
) -> None:
    """It is that of B against A, paired if seeds are equal, with the seeds it takes to
    decide."""
    a = tmp_path / "a"
    b = tmp_path / "b"
    for seed, value in enumerate(ACCURACIES):
        write_result(a / str(seed), seed, metrics={metric: value})
        metrics = {metric: value + (gain + 1e-5 * seed)}
        write_result(b / str(seed), b_seed + seed, model="lstm", metrics=metrics)
    found = machine_readable(a, b, "--metric", metric)
    [compared] = found["comparisons"]
    assert (found["verdict"], compared["paired"]) == (verdict, b_seed == 0)
    assert (compared["a"], compared["b"]) == (str(a), str(b))
    assert compared["difference"]["mean"] == pytest.approx(gain + 2e-5)
    assert (compared["seeds_to_decide"] is not None) == (
        verdict == "undecided" and gain != -2e-5
    )


@pytest.fixture
def rates(tmp_path: Path) -> Path:
    """Return a sweep over rates: 0.004 is best on validation data, 0.001 on the test
    set."""
    values = {0.001: (0.8, 0.91), 0.004: (0.9, 0.6), 0.01: (0.7, 0.5)}
    for number, (rate, (validation, test)) in enumerate(values.items()):
        for seed in range(3):
            write_rate(
                tmp_path / "a" / f"{3 * number + seed}_", seed, rate, validation, test
            )
    return tmp_path / "a"


def write_rate(
    run: Path, seed: int, rate: float, validation: float, test: float
) -> None:
    noise = seed * rate
    metrics = {"validation_accuracy": validation + noise, "test_accuracy": test + noise}
    config = write_result(run, seed, metrics=metrics) / "config.yaml"
    config.write_text(config.read_text().replace("lr: 0.003", f"lr: {rate}"))


def test_groups_are_chosen_by_validation_and_only_the_best_shows_its_test_value(
    rates: Path,
) -> None:
    """It takes `--final`, in text and JSON. Negative control: without it, no test value
    is shown, also not in sweep.csv; and groups cannot be ranked by their test
    values."""
    found = machine_readable(rates)
    assert [row["metric"] for row in found["groups"]] == ["validation_accuracy"] * 3
    assert [row["rank"] for row in found["groups"]] == [2, 1, 3]
    assert [each["verdict"] for each in found["comparisons"]] == ["better", "worse"]
    assert (found["final"], "test_accuracy" in json.dumps(found)) == (None, False)
    done = called(sweep_report.main, str(rates))
    assert "best by validation_accuracy: optimizer.lr=0.004" in done.stdout
    assert "0.60" not in done.stdout
    assert "test_" not in (rates / "sweep.csv").read_text()
    found = machine_readable(rates, "--final")
    assert found["final"]["settings"] == {"optimizer.lr": 0.004}
    [(name, of)] = found["final"]["metrics"].items()
    assert (name, of["n"], of["mean"]) == ("test_accuracy", 3, pytest.approx(0.604))
    assert "test_accuracy" not in json.dumps(found | {"final": None})
    text = called(sweep_report.main, str(rates), "--final").stdout
    assert "its test values: test_accuracy 0.6040 (n=3, 95 % interval 0.59" in text
    done = called(sweep_report.main, str(rates), "--metric", "test_accuracy")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--final" in done.stderr
    one = (str(rates), "--only", "optimizer.lr=0.001")
    alone = machine_readable(*one, "--final")
    assert alone["final"]["metrics"]["test_accuracy"]["mean"] == pytest.approx(0.911)
    for metric in ("validation_accuracy", "test_accuracy"):
        text = called(sweep_report.main, *one, "--metric", metric).stdout
        assert ("values are those of validation" in text) is (metric[:4] != "test")


def test_any_number_of_sweeps_is_ranked_together(rates: Path) -> None:
    """Each is compared with the groups of the first that have the same settings, those
    that vary within a sweep; others are ranked and named. Negative control: `--only`
    leaves them out."""
    for name, rate, accuracy in (
        ("b", 0.004, 0.7),
        ("b", 0.001, 0.95),
        ("c", 0.004, 0.92),
    ):
        for seed in range(3):
            value = accuracy + seed * 1e-3
            write_rate(rates.parent / name / f"{rate}_{seed}", seed, rate, value, value)
    a, b, c = (rates.parent / name for name in "abc")
    found = machine_readable(a, b, c)
    assert [(Path(row["sweep"]).name, row["rank"]) for row in found["groups"]] == [
        *(("a", 4), ("a", 3), ("a", 5)),
        *(("b", 1), ("b", 6)),
        ("c", 2),
    ]
    labels = {(each["a"], each["b"]): each["verdict"] for each in found["comparisons"]}
    assert labels == {
        (f"{a} optimizer.lr=0.001", f"{b} optimizer.lr=0.001"): "better",
        (f"{a} optimizer.lr=0.004", f"{b} optimizer.lr=0.004"): "worse",
        (f"{a} optimizer.lr=0.004", f"{c} optimizer.lr=0.004"): "better",
    }
    assert f"not compared, as only {a} optimizer.lr=0.01 has it" in found["notes"]
    found = machine_readable(
        a, b, c, "--only", "optimizer.lr=0.004", "--only", "model=cnn"
    )
    assert [row["rank"] for row in found["groups"]] == [2, 3, 1]
    named = "optimizer.lr=0.004", "--only", "model.name=cnn"  # as sweep.csv names it
    assert machine_readable(a, b, c, "--only", *named)["groups"] == found["groups"]
    assert not any("not compared" in note for note in found["notes"])
    for words in (["--only", "optimizer.lr=7"], ["--only", "="]):
        done = called(sweep_report.main, str(a), str(b), *words)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert done.stderr.startswith("error: --only: expected ")


def test_the_trials_of_a_search_are_ranked_and_not_compared(tmp_path: Path) -> None:
    """One table and one note, for 13 trials of a seed, or of two. Negative control: two
    groups."""
    for seed in range(2):
        for number in range(13):
            rate = 0.001 * number
            value = 0.5 + 0.001 * number
            write_rate(tmp_path / "a" / f"{number}_{seed}", seed, rate, value, 0.5)
        found = machine_readable(tmp_path / "a")
        assert (found["comparisons"], found["verdict"]) == ([], "undecided")
        assert sorted(row["rank"] for row in found["groups"]) == [*range(1, 14)]
        shown = show.describe(found)
        assert "undecided" not in shown
        assert "13 groups: ranked, not compared" in shown
    for number in range(2):
        write_rate(tmp_path / "b" / f"{number}_", 0, 0.001 * number, 0.5, 0.5)
    [compared] = machine_readable(tmp_path / "b")["comparisons"]
    assert compared["not_comparable"] == ["it takes two independent seeds on each side"]


def test_a_variant_whose_runs_all_failed_is_a_result(folder: Path) -> None:
    """Exit status 1 with a report, not an invalid request. Negative control: one run
    finished."""
    other = folder.parent / "other"
    for seed in range(3):
        write_result(
            other / str(seed), seed, model="gru", status="failed", error="not finite"
        )
    done = called(sweep_report.main, str(folder), str(other), "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["verdict"]) == (1, "undecided")
    assert found["left_out"][f"{other}/0"] == "failed not finite"
    assert [row["mean"]["n"] for row in found["groups"]] == [5, 0]
    assert [row["rank"] for row in found["groups"]] == [1, None]
    [compared] = found["comparisons"]
    assert compared["not_comparable"] == [
        f"no result: all 3 runs of {other} are left out"
    ]
    done = called(sweep_report.main, str(folder), str(other))
    assert (done.returncode, "no result: all 3 runs" in done.stdout) == (1, True)
    edit_summary(other / "0", status="finished")
    assert called(sweep_report.main, str(folder), str(other)).returncode == 0


def test_runs_that_share_seeds_are_not_independent(tmp_path: Path) -> None:
    """Runs whose streams vary one at a time have no interval; a note names seeds
    without effect. Negative control: all streams vary together."""
    for number, seeds in enumerate(({}, {"init": 1}, {"order": 1})):
        write_result(tmp_path / "a" / str(number), seeds=seeds, weights="0" * 16)
        write_result(tmp_path / "b" / str(number), number, accuracy=0.9 + 0.01 * number)
    assert not only(tmp_path / "a").is_independent
    assert "share the seeds of some streams" in described(tmp_path / "a")
    assert "all seeds gave the same weights" in described(tmp_path / "a")
    assert only(tmp_path / "b").mean.interval is not None
    assert "seeds" not in described(tmp_path / "b")


FOLDS = np.random.default_rng(0).uniform(0.9, 0.99, (3, 5))  # by seed and fold


@pytest.mark.parametrize(
    ("seeds", "expected"), [(1, FOLDS[0]), (3, FOLDS.mean(axis=1))]
)
def test_folds_are_pooled(tmp_path: Path, seeds: int, expected: np.ndarray) -> None:
    """With one seed, each fold is a value; with several, each seed's value is the mean
    of its folds. A seed that lacks folds is left out."""
    for seed, fold in np.ndindex(seeds, 5):
        place = tmp_path / f"{fold}_{seed}"
        write_result(place, seed, fold=fold, accuracy=float(FOLDS[seed, fold]))
    assert sorted(only(tmp_path).values) == pytest.approx(sorted(expected))
    assert only(tmp_path).is_independent
    if seeds == 3:
        (tmp_path / "4_2" / "config.yaml").unlink()
        assert sorted(only(tmp_path).values) == pytest.approx(sorted(expected[:2]))
        for place in ("0_1", "1_0"):  # each seed now lacks another fold
            (tmp_path / place / "config.yaml").unlink()
        assert only(tmp_path).mean.n == 1
        assert "2 of 3 seeds lack folds" in described(tmp_path)


SIZES = {"train": 3600, "validation": 400, "test": 500}


def test_folds_of_one_seed_are_not_independent(tmp_path: Path) -> None:
    """Their variance is corrected by their sizes, for a mean and a difference (Nadeau
    and Bengio 2003); without sizes there is no interval. Negative control: a seed for
    each value."""
    values = np.random.default_rng(1).normal(0.9, 0.01, 10)
    gain = np.random.default_rng(2).normal(0.004, 0.004, 10)
    for number, (value, more) in enumerate(zip(values, gain, strict=True)):
        for name, accuracy in (("a", value), ("b", value + more)):
            place = {"model": name, "accuracy": float(accuracy), "samples": SIZES}
            write_result(tmp_path / "folds" / f"{name}{number}", fold=number, **place)
            write_result(tmp_path / "seeds" / f"{name}{number}", number, **place)
    scale = math.sqrt(1 / 10 + 400 / 3600)
    for name, factor, noted in (
        ("folds", scale, True),
        ("seeds", math.sqrt(1 / 10), False),
    ):
        found = machine_readable(tmp_path / name)
        assert any("Nadeau and Bengio" in note for note in found["notes"]) is noted
        mean = found["groups"][0]["mean"]
        expected = stats.t.interval(0.95, 9, values.mean(), values.std(ddof=1) * factor)
        assert mean["interval"] == pytest.approx(expected)
        [compared] = found["comparisons"]
        expected = stats.t.interval(0.95, 9, gain.mean(), gain.std(ddof=1) * factor)
        assert compared["difference"]["interval"] == pytest.approx(expected)
        assert (compared["smallest_p"] is None) is noted, "folds are not exchangeable"
        assert (compared["sequential_interval"] is None) is noted
        assert compared["verdict"] == ("undecided" if noted else "better")
    edit_summary(tmp_path / "folds" / "a0", samples=None)
    found = machine_readable(tmp_path / "folds")
    assert found["groups"][0]["mean"]["interval"] is None
    assert "sizes are not recorded: no interval" in "\n".join(found["notes"])
    [compared] = found["comparisons"]
    assert compared["not_comparable"] == [
        "folds of one seed, whose sizes are not recorded"
    ]


def test_entries_of_another_type_give_no_traceback(tmp_path: Path) -> None:
    """The result is a report or an InputError. Negative control: a report of the
    original."""
    path = write_result(tmp_path / "run") / "summary.json"
    whole = json.loads(path.read_text())
    assert "| mean" in described(tmp_path)
    for key in whole:
        path.write_text(json.dumps(whole | {key: {"a": None}}))
        with contextlib.suppress(InputError):
            described(tmp_path)


def test_what_a_stranger_wrote_is_printed_escaped(tmp_path: Path) -> None:
    """The plot is drawn, too. A cyclic symlink is not followed; one to a run counts as
    a run."""
    write_result(tmp_path / "elsewhere")
    sweep = tmp_path / "sweep"
    write_result(sweep / "0\x1b[31m", status="failed", error="\x1b[2J")
    write_result(sweep / "1", model="\x1b[2J" + r"$\frac$" + "x" * 999)
    write_result(sweep / "2")
    (sweep / "a").symlink_to(sweep)
    (sweep / "b").symlink_to(tmp_path / "elsewhere")
    assert len(groups.read(sweep).runs) == 4
    assert "\x1b" not in described(sweep)
    show.write(groups.read(sweep))
    assert imread(sweep / "sweep.png").std() > 0.04  # of 1
