"""Comparisons of variants: what they give, what they list, and the ways to fool them.

Each cheat makes B look better than A. It is named, or there is no verdict; its negative
control is an honest pair of sweeps.
"""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf
from scipy import stats

from seedbed.cli import sweep_report
from tests.made_up_runs import edit_summary, hash_of, write_result, write_results
from tests.running import called

BASE = (0.981, 0.984, 0.979, 0.990, 0.986, 0.975)
GAIN = (0.004, 0.003, 0.006, 0.005, 0.004, 0.002)
TASK = {"name": "classification", "label_smoothing": 0.1}


def write_sweep(
    folder: Path, values: Sequence[float], numbers: Sequence[int] = range(6), **how: Any
) -> Path:
    """Write a sweep over seeds with its plan, and values as its accuracies; return its
    folder."""
    config: Any = OmegaConf.merge({"data": {"task": TASK}}, how.pop("config", {}))
    for seed in numbers:
        value = float(values[seed])
        metrics = {
            "validation_accuracy": value,
            "validation_loss": 1 - value,
            "test_accuracy": 0.5,
        }
        write_result(
            folder / f"{seed}_seed={seed}", seed, metrics=metrics, config=config, **how
        )
    write_plan(folder, numbers)
    return folder


def write_plan(folder: Path, seeds: Sequence[int]) -> None:
    plan = {
        "command": ["-m", "seed=..."],
        "varied": ["seed"],
        "jobs": {str(seed): [f"seed={seed}"] for seed in seeds},
        "additions": [{"when": "2026-11-28", "by": "a@b", "jobs": [*map(str, seeds)]}],
        "looks": [],
    }
    (folder / "sweep.json").write_text(json.dumps(plan))


@pytest.fixture
def a(tmp_path: Path) -> Path:
    return write_sweep(tmp_path / "a", BASE)


def better() -> list[float]:
    return [x + y for x, y in zip(BASE, GAIN, strict=True)]


def report(*words: object, status: int = 0) -> Any:
    done = called(sweep_report.main, *map(str, words), "--json")
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout)


def compared(*words: object) -> Any:
    [comparison] = report(*words)["comparisons"]
    return comparison


def keys(comparison: Any) -> list[str]:
    return [change["key"] for change in comparison["differs"]]


def test_an_honest_comparison_has_a_verdict_and_no_caution(a: Path) -> None:
    """And what the seeds can show, by independent computations."""
    b = write_sweep(a.parent / "b", better(), model="lstm")
    found = compared(a, b)
    assert (found["verdict"], found["not_comparable"], found["cautions"]) == (
        "better",
        [],
        [],
    )
    assert keys(found) == ["model.name"]
    assert found["correlation"] == pytest.approx(np.corrcoef(BASE, better())[0, 1])
    assert (found["a_wins"], found["smallest_p"]) == (0.0, 2 / 2**6)
    low, high = found["sequential_interval"]
    assert (
        low
        < found["difference"]["interval"][0]
        < found["difference"]["interval"][1]
        < high
    )
    text = called(sweep_report.main, str(a), str(b)).stdout
    assert f"{b} against {a}: better, +0.0040 (95 % interval +0.00" in text
    assert f"{a} wins in 0 % of seeds" in text
    assert "can reach p < 0.031" in text
    assert "  differs: model.name cnn -> lstm\n" in text
    found = compared(b, a)
    assert (found["verdict"], found["a_wins"]) == ("worse", 1.0)


def test_intervals_are_corrected_for_the_number_of_comparisons(a: Path) -> None:
    """Bonferroni: with 1 - 5 % / 6 each, six hold at once with 95 %. A difference that
    is better alone is undecided beside five others."""
    noisy = [x + 2.2 * y - 0.005 for x, y in zip(BASE, GAIN, strict=True)]
    b = write_sweep(a.parent / "b", noisy, model="lstm")
    others = [write_sweep(a.parent / name, BASE[::-1], model=name) for name in "cdefg"]
    alone = compared(a, b)
    assert (alone["confidence"], alone["verdict"]) == (0.95, "better")
    found = report(a, b, *others)["comparisons"]
    assert [each["confidence"] for each in found] == pytest.approx([1 - 0.05 / 6] * 6)
    assert found[0]["verdict"] == "undecided"
    expected = stats.ttest_rel(noisy, BASE).confidence_interval(1 - 0.05 / 6)
    assert found[0]["difference"]["interval"] == pytest.approx([*expected])


def task(**changes: Any) -> dict[str, Any]:
    return {"data": {"task": {**TASK, **changes}}}


OWN_TASK = {"name": "focal", "_target_": "project.focal.Focal"}
OWN_METHOD = {"method": {"_target_": "project.own.Own", "scale": 1.0}}
SUPERVISED = {"method": {"_target_": "seedbed.methods.Supervised", "output": None}}
BINARY = {"name": "binary", "_target_": None}
QUANTILE = {"name": "quantile", "_target_": "seedbed.tasks.Quantile"}
F1 = {"metrics": {"f1": {"_target_": "torchmetrics.F1Score", "average": "macro"}}}


@pytest.mark.parametrize(
    ("config", "key", "value", "loss", "accuracy", "f1"),
    [
        ({}, "data.task.label_smoothing", 0.0, "not", "", ""),
        ({}, "data.task.class_weights", [1, 2], "not", "", ""),
        ({}, "data.task.ignore_index", 255, "not", "not", "not"),
        ({}, "data.task.name", "binary", "not", "not", "not"),
        (task(**BINARY), "data.task.pos_weight", 2.0, "not", "", ""),
        (task(**OWN_TASK), "data.task.gamma", 2.0, "not", "not", "not"),
        (task(**OWN_TASK), "data.task.label_smoothing", 0.0, "not", "not", "not"),
        (task(**QUANTILE), "data.task.quantiles", [0.5], "not", "not", "not"),
        (OWN_METHOD, "method.scale", 0.5, "not", "perhaps", "perhaps"),
        (SUPERVISED, "method.output", "logits", "", "", ""),
        (
            {**SUPERVISED, **OWN_METHOD},
            "method.scale",
            0.5,
            "not",
            "perhaps",
            "perhaps",
        ),
        (F1, "metrics.f1.average", "micro", "", "", "not"),
        ({}, "callbacks.log.count", 3, "", "", "perhaps"),
        ({}, "optimizer.lr", 0.1, "", "", ""),
    ],
)
def test_what_a_value_is_computed_by_makes_it_another(
    tmp_path: Path, config: Any, key: str, value: Any, loss: str, accuracy: str, f1: str
) -> None:
    """There is no verdict and no rank, or a caution. An argument of a task is one of
    its loss and its metric, but for the few of built-in tasks that change the loss
    alone; an argument of a method that evaluates is one of the loss. Negative controls:
    other settings."""
    for name, values in (("a", BASE), ("b", better())):
        changed = OmegaConf.merge(config, F1 if key.startswith("metrics") else {})
        if name == "b":
            OmegaConf.update(changed, key, value, force_add=True)
        write_sweep(tmp_path / name, values, config=changed)
        for run in (tmp_path / name).glob("*_*"):
            found = json.loads((run / "summary.json").read_text())["metrics"]
            write_results(run, {**found, "validation_f1": found["validation_accuracy"]})
    for metric, expected in (("loss", loss), ("accuracy", accuracy), ("f1", f1)):
        what = "loss" if metric == "loss" else "metric"
        made = report(
            tmp_path / "a", tmp_path / "b", "--metric", f"validation_{metric}"
        )
        [found] = made["comparisons"]
        reasons = [reason.partition(" is ")[0] for reason in found["not_comparable"]]
        assert reasons == ([f"another {what}: {key}"] if expected == "not" else [])
        is_named = [
            line
            for line in found["cautions"]
            if line.startswith(f"{key}: if validation")
        ]
        assert found["cautions"] == is_named
        assert len(is_named) == (expected == "perhaps")
        assert (found["verdict"] == "undecided") is (expected == "not")
        ranks = [group["rank"] for group in made["groups"]]
        # in which direction f1 is better
        is_unknown = expected == "not" or metric == "f1"
        assert ranks == ([None, None] if is_unknown else [2, 1])
        notes = [
            note for note in made["notes"] if note.startswith("not ranked: another")
        ]
        assert len(notes) == (expected == "not")


def test_a_method_without_an_evaluation_of_its_own_changes_no_value(a: Path) -> None:
    """As its record says. Negative control: it says that the method evaluates, or
    nothing."""
    shutil.rmtree(a)
    for by, is_other in (("task", False), ("method", True), (None, True)):
        for name, scale in (("a", 1.0), ("b", 0.5)):
            config = {"method": {"_target_": "project.own.Own", "scale": scale}}
            folder = a.parent / f"{name}{by}"
            write_sweep(
                folder,
                BASE if name == "a" else better(),
                config=config,
                evaluated_by=by,
            )
        words = (
            a.parent / f"a{by}",
            a.parent / f"b{by}",
            "--metric",
            "validation_loss",
        )
        assert bool(compared(*words)["not_comparable"]) is is_other


@pytest.mark.parametrize(
    ("weights", "changed", "is_named"),
    [
        ("best", {"test_weights": "last"}, True),
        ("best", {"validate_every_epochs": 4}, True),
        ("best", {"validate_every_steps": 10}, True),
        ("last", {"validate_every_epochs": 4}, False),
        ("best", {"log_every_steps": 4}, False),
    ],
)
def test_the_best_of_unequally_many_validations_is_named(
    a: Path, weights: str, changed: dict[str, Any], is_named: bool
) -> None:
    """Negative controls: the last weights of both, and another setting."""
    shutil.rmtree(a)
    trainer = {"test_weights": weights, "validate_every_epochs": 1}
    for name, more in (("a", {}), ("b", changed)):
        values = BASE if name == "a" else better()
        write_sweep(a.parent / name, values, config={"trainer": trainer | more})
    cautions = compared(a, a.parent / "b")["cautions"]
    assert [line.partition(" ")[0] for line in cautions] == [
        f"trainer.{key}" for key in changed if is_named
    ]


@pytest.mark.parametrize(
    ("changed", "is_named"),
    [
        ("src/project/focal.py", True),
        ("src/project/focal/__init__.py", True),
        ("a.py", False),
    ],
)
def test_code_of_a_task_that_differs_is_named(
    a: Path, changed: str, is_named: bool
) -> None:
    shutil.rmtree(a)
    for name, digest in (("a", "a" * 64), ("b", "b" * 64)):
        environment = {"imported_files": {changed: digest}}
        values = BASE if name == "a" else better()
        write_sweep(
            a.parent / name, values, config=task(**OWN_TASK), environment=environment
        )
    line = (
        f"{changed}, which has data.task._target_, differs: validation_accuracy may be"
        " another value"
    )
    found = compared(a, a.parent / "b")
    assert found["cautions"] == ([line] if is_named else [])
    assert found["verdict"] == "better"


def test_statistics_of_a_task_that_differ_are_named(a: Path) -> None:
    """Such as weights of classes. Negative control: statistics that the data set alone
    takes."""
    shutil.rmtree(a)
    for config in (
        task(**OWN_TASK, statistics=None),
        {"data": {"train": {"statistics": None}}},
    ):
        for name, digest in (("a", "a"), ("b", "b")):
            values = BASE if name == "a" else better()
            environment = {"statistics_sha256": digest}
            write_sweep(a.parent / name, values, config=config, environment=environment)
        cautions = compared(a, a.parent / "b")["cautions"]
        assert [line.partition(":")[0] for line in cautions] == (
            ["statistics_sha256"] if "task" in config["data"] else []
        )
        shutil.rmtree(a)
        shutil.rmtree(a.parent / "b")


def test_another_content_of_a_tasks_file_is_another_metric(a: Path) -> None:
    """Negative control: equal files."""
    config = task(**OWN_TASK, file="costs.txt")
    for digest in ("b", "a"):
        shutil.rmtree(a)
        shutil.rmtree(a.parent / "b", ignore_errors=True)
        for name, content in (("a", "a"), ("b", digest)):
            values = BASE if name == "a" else better()
            environment = {"files_sha256": {"costs.txt": content}}
            write_sweep(a.parent / name, values, config=config, environment=environment)
        reasons = compared(a, a.parent / "b")["not_comparable"]
        is_other = "the file costs.txt of data.task.file has changed"
        assert any(is_other in reason for reason in reasons) is (digest == "b")


SPLIT = {"seeds": {"split": 7}}


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize(
    ("how", "name"),
    [
        ({"seeds": {"split": 7}}, "seeds.split"),
        (
            {"config": {"data": {"validation": {"samples": 10}}}},
            "data.validation.samples",
        ),
        ({"environment": {"data_sha256": {"images": "ff"}}}, "data_sha256.images"),
    ],
)
def test_another_validation_set_is_not_compared(
    a: Path, how: dict[str, Any], name: str, is_known: bool
) -> None:
    """By the fingerprint of its targets, or else by split, settings and digests. What
    differs is listed. Negative control: other settings, but the same targets."""
    if "environment" in how:
        shutil.rmtree(a)
        write_sweep(a, BASE, environment={})
    b = write_sweep(a.parent / "b", better(), **how)
    for run in [*a.glob("*_*"), *b.glob("*_*")]:
        hashes = {"weights": hash_of(run.name)}
        known = {"validation_targets": hash_of(run.parent)} if is_known else {}
        edit_summary(run, fingerprints=hashes | known)
    found = compared(a, b)
    assert found["verdict"] == "undecided"
    [reason] = found["not_comparable"]
    assert reason.startswith("another validation set: ")
    assert name in keys(found)
    assert (name in reason) is not is_known
    if is_known:
        for run in [*a.glob("*_*"), *b.glob("*_*")]:
            edit_summary(run, fingerprints={"validation_targets": "0"})
        assert compared(a, b)["not_comparable"] == []


def test_other_folds_are_not_compared(tmp_path: Path) -> None:
    """Negative control: the same folds."""
    for name, first in (("a", 0), ("b", 3), ("c", 0)):
        for fold in range(first, first + 3):
            value = 0.9 + 0.01 * (name != "a") + 0.001 * fold**2
            write_result(
                tmp_path / name / str(fold), fold=fold, accuracy=value, model=name
            )
            edit_summary(
                tmp_path / name / str(fold), samples={"train": 90, "validation": 10}
            )
    [reason, _] = compared(tmp_path / "a", tmp_path / "b")["not_comparable"]
    assert reason.startswith("other folds: data.train.fold=0")
    assert compared(tmp_path / "a", tmp_path / "c")["not_comparable"] == []


def lengthen(b: Path) -> None:
    for run in b.glob("*_*"):
        edit_summary(run, steps=80)


def resume_with_changes(b: Path) -> None:
    resumes = [{"step": 20, "can_alter_bits": ["optimizer.lr"]}]
    edit_summary(b / "2_seed=2", resumes=resumes)


def leak(b: Path) -> None:
    line = (
        "data: 7 of 500 validation samples are also in training (validation 0 is"
        " training 3)"
    )
    for run in b.glob("*_*"):
        edit_summary(run, warnings=[line])


def train_fast(b: Path) -> None:
    for path in b.glob("*/config.yaml"):
        text = path.read_text().replace("name: strict", "name: fast")
        path.write_text(text.replace("istic: error", "istic: allow"))


def delete_the_worst(b: Path) -> None:
    shutil.rmtree(b / "5_seed=5")


def delete_the_plan(b: Path) -> None:
    delete_the_worst(b)
    (b / "sweep.json").unlink()


@pytest.mark.parametrize(
    ("cheat", "caution"),
    [
        (lengthen, "unequal training: 40 and 80 steps"),
        (
            resume_with_changes,
            "2_seed=2 was resumed at step 20 with other optimizer.lr",
        ),
        (leak, "samples are also in training"),
        (train_fast, "determinism=fast: equal seeds may give other values"),
        (delete_the_plan, "no sweep.json: which seeds were planned"),
    ],
)
def test_what_else_may_explain_a_difference_is_named(
    cheat: Callable[[Path], None], caution: str, a: Path
) -> None:
    """In JSON and in text, once. Negative control: the same sweep before."""
    b = write_sweep(a.parent / "b", better())
    assert compared(a, b)["cautions"] == []
    cheat(b)
    [found] = compared(a, b)["cautions"]
    assert caution in found
    text = called(sweep_report.main, str(a), str(b)).stdout
    assert text.count(f"caution: {found}") == 1


def test_a_deleted_seed_of_a_plan_is_named(a: Path) -> None:
    b = write_sweep(a.parent / "b", better())
    delete_the_worst(b)
    assert report(a, b)["left_out"] == {f"{b}/5_seed=5": "no record"}
    assert compared(a, b)["cautions"] == [f"{b}: 1 of 6 runs are left out"]


@pytest.mark.parametrize("name", ["5_seed=5", "6_seed=6", "mine"])
def test_a_run_that_is_not_planned_hides_no_seed(name: str, a: Path) -> None:
    """A run of another seed in place of the worst, in its folder or another one: both
    are named, and seeds that come after a look are added ones. Negative control:
    folders of any names."""
    b = write_sweep(a.parent / "b", better())
    report(a, b)
    delete_the_worst(b)
    write_result(b / name, 6, accuracy=0.999, config={"data": {"task": TASK}})
    made = report(a, b)
    assert made["left_out"] == {f"{b}/5_seed=5": "no record"}
    assert (
        f"{b}: runs that the plan (sweep.json) does not have: {name}" in made["notes"]
    )
    cautions = made["comparisons"][0]["cautions"]
    assert f"{b}: 1 of 7 runs are left out" in cautions
    assert f"{b}: not in its plan (sweep.json): {name}" in cautions
    if name != "5_seed=5":  # which the look has seen by its name
        assert made["comparisons"][0]["decided_by"] == "sequential"
    c = write_sweep(a.parent / "c", better())
    for run in [*c.glob("*_*")]:
        run.rename(c / f"mine{run.name[-1]}")
    made = report(a, c)
    assert (made["left_out"], made["comparisons"][0]["cautions"]) == ({}, [])


def test_jobs_are_told_apart_by_seeds_and_the_words_of_commands(tmp_path: Path) -> None:
    """Options of groups are in the command alone."""
    jobs = {}
    for number in range(4):
        seed = number // 2
        name = ("adamw", "sgd")[number % 2]
        words = [f"optimizer={name}", f"seed={seed}"]
        jobs[str(number)] = words
        config = {"optimizer": {"name": f"{name}_w"}}
        command = f"python train.py {' '.join(words)} hydra.run.dir=x"
        write_result(tmp_path / f"run{number}", seed, config=config, command=command)
    plan = {"varied": ["optimizer", "seed"], "jobs": jobs}
    (tmp_path / "sweep.json").write_text(json.dumps(plan))
    assert report(tmp_path)["left_out"] == {}
    shutil.rmtree(tmp_path / "run1")
    assert report(tmp_path)["left_out"] == {"1_optimizer=sgd,seed=0": "no record"}


def test_other_inputs_of_the_same_targets_are_named(a: Path) -> None:
    """Of other files or splits, they are another validation set; else they may be
    preprocessed in another way. Negative controls: other batches, whose fingerprints
    say nothing; equal inputs."""
    shutil.rmtree(a)
    line = "the inputs of validation differ: other samples, or another preprocessing"
    for name, config, environment, samples, expected in (
        ("same", {}, {}, "1", None),
        ("preprocessed", {}, {}, "2", "caution"),
        ("files", {}, {"data_sha256": {"images": "ff"}}, "2", "not"),
        ("training files", {}, {"data_sha256": {"images": "ff"}}, "1", None),
        ("batches", {"data": {"eval_batch_size": 7}}, {}, "2", None),
    ):
        pair = [a.parent / f"{name}_{side}" for side in "ab"]
        write_sweep(pair[0], BASE, environment={})
        write_sweep(pair[1], better(), config=config, environment=environment)
        for folder, fingerprint in zip(pair, ("1", samples), strict=True):
            for run in folder.glob("*_*"):
                hashes = {"weights": hash_of(run.name), "validation_targets": "0"}
                edit_summary(
                    run, fingerprints={**hashes, "validation_samples": fingerprint}
                )
        found = compared(*pair)
        reason = "another validation set: its inputs differ, and data_sha256.images"
        assert found["not_comparable"] == ([reason] if expected == "not" else [])
        assert found["cautions"] == ([line] if expected else [])


def test_a_summary_that_its_table_contradicts_does_not_count(a: Path) -> None:
    """It is left out, with both values. Negative control: the table says the same."""
    b = write_sweep(a.parent / "b", better())
    run = b / "5_seed=5"
    forged = {
        "validation_accuracy": 0.999,
        "validation_loss": 0.1,
        "test_accuracy": 0.5,
    }
    for name in forged:
        write_results(run, {**forged, name: 0.7})
        edit_summary(run, metrics=forged)
        [line] = report(a, b)["left_out"].values()
        assert (
            line
            == f"summary.json: metrics.{name} is {forged[name]}, but 0.7 in metrics.csv"
        )
        assert compared(a, b)["cautions"] == [f"{b}: 1 of 6 runs are left out"]
    write_results(run, forged)
    assert report(a, b)["left_out"] == {}
    edit_summary(run, tested_step=20)  # of which there is no row
    assert (
        "is 0.999, but None in metrics.csv" in report(a, b)["left_out"][f"{b}/5_seed=5"]
    )
    (run / "metrics.csv").write_text(
        "step,epoch,phase,loss,learning_rate\n40,2.0,test,much,\n"
    )
    assert "metrics.csv: expected numbers" in report(a, b)["left_out"][f"{b}/5_seed=5"]


def test_code_that_is_not_committed_is_named(a: Path) -> None:
    """By its digest. Files that only one of two models imports are not listed."""
    shutil.rmtree(a)
    write_sweep(a, BASE, environment={})
    b = write_sweep(
        a.parent / "b", better(), environment={"imported_files": {"a.py": "b" * 64}}
    )
    found = compared(a, b)
    [change] = found["differs"]
    assert (change["key"], change["kind"]) == ("a.py", "code")
    assert (change["a"], change["b"]) == ("a" * 12, "b" * 12)
    assert (
        "  differs: a.py aaaaaaaaaaaa -> bbbbbbbbbbbb\n"
        in called(sweep_report.main, str(a), str(b)).stdout
    )


def test_an_environment_that_a_run_did_not_record_is_no_difference(a: Path) -> None:
    """As of jobs that Ctrl-C stopped as they started. Settings are compared. Negative
    control: another commit."""
    shutil.rmtree(a)
    write_sweep(a, BASE, environment={})
    b = write_sweep(a.parent / "b", better(), model="lstm", environment={})
    stopped = b / "5_seed=5"
    (stopped / "environment.json").unlink()
    edit_summary(stopped, status="interrupted", metrics=None)
    assert keys(compared(a, b)) == ["model.name"]
    for run in b.glob("*_*"):
        (run / "environment.json").unlink(missing_ok=True)
    assert keys(compared(a, b)) == ["model.name"]
    shutil.rmtree(b)
    commit = {"git": {"commit": "fedcba9876543210"}}
    write_sweep(b, better(), model="lstm", environment=commit)
    assert keys(compared(a, b)) == ["model.name", "git.commit"]


def test_all_results_that_differ_are_listed(a: Path) -> None:
    """Steps, parameters, samples and seconds, beside settings that change no bit."""
    sizes = {"train": 100, "validation": 10}
    config = {"trainer": {"log_every_steps": 7}}
    b = write_sweep(a.parent / "b", better(), config=config, parameters=5, seconds=9.0)
    for run in b.glob("*_*"):
        edit_summary(run, samples=sizes)
    found = {
        change["key"]: (change["a"], change["b"])
        for change in compared(a, b)["differs"]
    }
    assert found == {
        "trainer.log_every_steps": (1, 7),
        "parameters": ("unknown", "5"),
        "samples.train": ("unknown", "100"),
        "samples.validation": ("unknown", "10"),
        "seconds": ("8.0", "9.0"),
    }


def add_seeds(folder: Path, values: Sequence[float]) -> None:
    """Add four seeds to a sweep, as its command does with more seeds."""
    path = folder / "sweep.json"
    plan = json.loads(path.read_text())
    for seed in range(6, 10):
        metrics = {"validation_accuracy": float(values[seed]), "test_accuracy": 0.5}
        write_result(
            folder / f"{seed}_seed={seed}",
            seed,
            metrics=metrics,
            config={"data": {"task": TASK}},
        )
        plan["jobs"][str(seed)] = [f"seed={seed}"]
    plan["additions"].append({"when": "2026-11-29", "by": "a@b", "jobs": [*"6789"]})
    path.write_text(json.dumps(plan))


def test_seeds_that_were_added_after_a_look_need_the_sequential_interval(
    a: Path,
) -> None:
    """Here it is undecided, where the t interval says better; a clearer difference is
    decided. Negative control: the same seeds, added before anybody looked."""
    noise = np.random.default_rng(3).normal(size=10)
    noise = (noise - noise.mean()) / noise.std(ddof=1)
    base = 0.9 + 0.01 * noise[::-1]
    for name, effect, verdict in (("b", 1.0, "undecided"), ("c", 3.0, "better")):
        for is_seen in (False, True):
            folders = [a.parent / f"{name}{is_seen}{side}" for side in "ab"]
            sides = [base, base + 0.001 * (effect + noise)]
            for folder, values in zip(folders, sides, strict=True):
                write_sweep(folder, values)
            if is_seen:
                report(*folders)
            for folder, values in zip(folders, sides, strict=True):
                add_seeds(folder, values)
            found = compared(*folders)
            assert found["difference"]["n"] == 10
            assert found["difference"]["interval"][0] > 0
            assert found["decided_by"] == ("sequential" if is_seen else "t")
            assert found["verdict"] == (verdict if is_seen else "better")
            caution = (
                "seeds were added after a look: only the sequential interval holds"
            )
            named = [f"{folder}: {caution}" for folder in folders] if is_seen else []
            assert found["cautions"] == named
            text = called(sweep_report.main, *map(str, folders)).stdout
            assert ("decided by the sequential interval" in text) is is_seen


def test_seeds_that_were_planned_before_a_look_are_not_added(a: Path) -> None:
    """They finished later, and another setting was added. Negative control: without the
    plan."""
    b = write_sweep(a.parent / "b", better())
    edit_summary(b / "5_seed=5", status="running")
    report(a, b)
    edit_summary(b / "5_seed=5", status="finished")
    plan = json.loads((b / "sweep.json").read_text())
    plan["additions"].append({"jobs": ["6"]})
    for planned, decided_by in (("012345", "t"), ("01234", "sequential")):
        plan["additions"][0]["jobs"] = [*planned]
        (b / "sweep.json").write_text(json.dumps(plan))
        found = compared(a, b)
        assert (found["decided_by"], found["difference"]["n"]) == (decided_by, 6)


def test_a_plan_keeps_each_look(a: Path) -> None:
    """Who looked when, at which seeds, once for equal looks. A folder without a plan
    gets none, and one that cannot be written costs the note alone."""
    b = write_sweep(a.parent / "b", better())
    for _ in range(2):
        report(a, b)
    report(a, "--final")
    history = report(a)["sweeps"][0]
    assert (history["folder"], history["planned"]) == (str(a), 6)
    looks = json.loads((a / "sweep.json").read_text())["looks"]
    assert [(look["with"], look["final"]) for look in looks] == [
        ([str(b)], False),
        ([], True),
        ([], False),
    ]
    assert all(look["when"] and "@" in look["by"] for look in looks)
    assert looks[0]["runs"] == [f"{seed}_seed={seed}" for seed in range(6)]
    assert looks[0]["metric"] == ["validation_accuracy"]
    assert looks[0]["seeds"] == [*"012345"]
    (b / "sweep.json").unlink()
    report(b)
    assert not (b / "sweep.json").exists()
    before = (a / "sweep.json").read_bytes()
    (a / ".sweep.lock").unlink()
    (a / ".sweep.lock").symlink_to(a.parent / "elsewhere")
    [note] = report(a, "--metric", "validation_loss")["notes"]
    assert note.startswith(f"{a}: this look could not be noted: ")
    assert (a / "sweep.json").read_bytes() == before
    assert not (a.parent / "elsewhere").exists()


def test_an_undecided_comparison_asks_for_new_sweeps_and_not_for_more_seeds(
    a: Path,
) -> None:
    """Seeds that are added after a look would need the sequential interval, which it
    says."""
    noise = (0.01, -0.008, 0.006, -0.004, 0.003, 0.001)
    b = write_sweep(a.parent / "b", [x + y for x, y in zip(BASE, noise, strict=True)])
    found = compared(a, b)
    assert found["verdict"] == "undecided"
    text = called(sweep_report.main, str(a), str(b)).stdout
    assert f"new sweeps of {found['seeds_to_decide']} seeds each would decide" in text
    assert "more\n" not in text
