"""Nothing of a stranger's sweep acts, and what it holds is reported or refused."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from seedbed.errors import InputError, printable
from seedbed.sweeps import groups, plan, report, resume_sweep
from tests.fake_runs import write_run


def test_links_that_go_round_are_not_followed(tmp_path: Path) -> None:
    """Two of them make 2**40 paths; control: a run that is linked to is read."""
    write_run(tmp_path / "elsewhere")
    sweep = tmp_path / "sweep"
    (sweep / "sub").mkdir(parents=True)
    for name in ("a", "b"):
        (sweep / "sub" / name).symlink_to(sweep)
    (sweep / "0").symlink_to(tmp_path / "elsewhere")
    assert [run.name for run in groups.read(sweep).runs] == ["0"]


@pytest.mark.parametrize(
    "words",
    [["seed=range(0,1000000000)"], ["seed=shuffle(range(0,1000000000))"], ["a=range(0,1,1e-9)"],
     ["seed=range(0,5,0)"], [f"{key}=range(0,100)" for key in "abcd"], ["a=" + "[" * 5000],
     ["a=" + "1," * 20_000 + "1"]],
)  # fmt: skip
def test_jobs_beyond_number_are_not_enumerated(words: list[str], tmp_path: Path) -> None:
    """Counted without making them; control: as many as people start are."""
    with pytest.raises(InputError, match="expected a sweep of at most 10,000 jobs"):
        plan.require_countable(tmp_path, words)
    assert plan._product(words) == []
    few = ["seed=range(0,10)", "model=cnn,lstm", "x=choice(1,2,3)", "trainer.max_steps=3"]
    plan.require_countable(tmp_path, few)
    assert len(plan._product(few)) == 60


@pytest.mark.parametrize(
    "word",
    ["hydra/sweeper=../../../stranger/evil", "hydra/launcher=../evil", "hydra/sweeper=/tmp/evil",
     "hydra.sweep.subdir=../escaped/${hydra.job.num}", "hydra.sweep.subdir=/tmp/${hydra.job.num}",
     "hydra.sweep.subdir=${oc.env:HOME}", "hydra.launcher.partition=${oc.env:TOKEN}",
     "hydra.launcher.srun_args=[--prolog=/tmp/evil]", "hydra.launcher.ray.init.address=host:1",
     "hydra.launcher.submitit_folder=x", "hydra.sweeper.params.trusted_packages=choice([os])",
     "hydra.sweeper.params={trusted_packages: [os]}", "hydra.output_subdir=x"],
)  # fmt: skip
def test_words_for_hydra_that_lead_elsewhere_have_to_be_said_again(word: str) -> None:
    """Control: choices of what is installed, numbers, spaces to search, names of folders."""
    harmless = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "hydra.sweeper.n_trials=20",
                "hydra.sweep.subdir=${hydra.job.num}", "hydra.launcher.timeout_min=60",
                "hydra.sweeper.params.optimizer.lr=interval(1e-4,0.1)"]  # fmt: skip
    assert resume_sweep._words({"task": [], "hydra": harmless}, []) == harmless
    with pytest.raises(InputError, match="because it can name code"):
        resume_sweep._words({"task": [], "hydra": [*harmless, word]}, [])


@pytest.mark.parametrize(
    "word",
    ["experiment=/tmp/evil", "experiment=a/../../evil", "experiment=a,/tmp/evil", "../x=y",
     "experiment=[a, /b]", "data.mirrors=['http://h/${oc.env:TOKEN}']", "logger.wandb.mode=online",
     "experiment=a\n../b", "+data={root: x}", "experiment=file:///x"],
)  # fmt: skip
def test_words_for_runs_that_lead_elsewhere_have_to_be_said_again(word: str) -> None:
    """Control: options, also in subfolders, numbers, lists and what is deleted."""
    harmless = ["experiment=mine/a", "model=cnn,lstm", "seed=range(0,3)", "logger=[mlflow,csv]",
                "data.root=../data", "model=glob(*)", "~experiment", "++model.x=[1, 2]",
                "objective=best_validation_accuracy"]  # fmt: skip
    assert resume_sweep._words({"task": harmless, "hydra": []}, []) == harmless
    with pytest.raises(InputError, match="because it can name code"):
        resume_sweep._words({"task": [*harmless, word], "hydra": []}, [])


def test_names_of_a_record_are_no_mathematics(tmp_path: Path) -> None:
    r"""`$\frac$` is drawn as it stands; control: matplotlib cannot draw it as mathematics."""
    name = r"$\frac$" + "x" * 10_000
    with pytest.raises(ValueError, match="frac"):
        Figure(figsize=(1, 1)).text(0, 0, name).figure.savefig(io.BytesIO())
    for number, model in enumerate((name, "cnn")):
        write_run(tmp_path / "sweep" / str(number), model=f"'{model}'")
    report.write(groups.read(tmp_path / "sweep"))
    assert (tmp_path / "sweep" / "sweep.png").stat().st_size > 0


@pytest.mark.parametrize("junk", [None, [], {}, "x", 1e999, -1, [{}], {"a": None}])
def test_entries_of_another_type_give_no_traceback(junk: Any, tmp_path: Path) -> None:
    """A report or one line; control: with the entries as they were, a report."""
    path = write_run(tmp_path / "run") / "summary.json"
    whole = json.loads(path.read_text())
    assert "| mean" in report.write(groups.read(tmp_path))
    for key in whole:
        path.write_text(json.dumps(whole | {key: junk}))
        with contextlib.suppress(InputError):
            report.write(groups.read(tmp_path))


def test_control_characters_of_a_run_are_escaped(tmp_path: Path) -> None:
    """In names and errors of runs; control: they are in the record, as read."""
    write_run(tmp_path / "0\x1b[31m", status="failed", error="\x1b[2J")
    found = groups.read(tmp_path).runs[0]
    assert "\x1b[2J" in found.problem
    assert "\x1b" not in printable(found.problem) + found.name
