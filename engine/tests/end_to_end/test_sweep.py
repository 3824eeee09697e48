"""Sweeps from the shell: started, stopped, killed and resumed by the same command."""

import json
import os
import random
import re
import shlex
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from seedbed import config, launch, record
from seedbed.errors import InputError
from seedbed.sweeps import job
from tests.end_to_end.kills import JOBLIB, Case, killed, sweep_words
from tests.end_to_end.live import begin, processes, rows, until
from tests.made_up_runs import contents
from tests.running import QUICK, ROOT, refusal
from tests.running import command as run
from tests.running import run as in_project

SEEDS = 2  # of the fixture quick_sweep
different = Case("", (), "sweeps").differences


@pytest.fixture
def copy(quick_sweep: Path, tmp_path: Path) -> Path:
    """Return a copy of a finished sweep that the test may damage."""
    return Path(shutil.copytree(quick_sweep, tmp_path / "a sweep"))


def test_finished_jobs_are_skipped_and_lost_ones_started(
    quick_sweep: Path, copy: Path
) -> None:
    """resume.py prints the command that does it. Negative control: a lost job is a
    difference."""
    before = (copy / "1_seed=1" / "summary.json").stat().st_mtime_ns
    shutil.rmtree(copy / "0_seed=0")
    assert different(quick_sweep, copy) != []
    done = run("scripts/resume.py", str(copy))
    assert (done.returncode, done.stderr) == (0, "")
    assert not (copy / "0_seed=0").exists(), "it is only printed"
    words = shlex.split(done.stdout)
    assert words[:2] == ["python", "train.py"]
    assert run(*words[1:]).returncode == 0
    assert different(quick_sweep, copy) == []
    assert (copy / "1_seed=1" / "summary.json").stat().st_mtime_ns == before


def edit(path: Path, pattern: str, new: str) -> None:
    """Edit a file of a record, as if the project had been edited since it was
    written."""
    text, count = re.subn(pattern, new, path.read_text())
    assert count
    path.write_text(text)


@pytest.mark.long
def test_a_repeated_sweep_names_what_changed(copy: Path, quick_sweep: Path) -> None:
    """Finished jobs are counted; a changed setting is refused, with its job; changed
    code and files are warned of. Negative controls: nothing changed, and a setting that
    changes no bit."""
    words = sweep_words(copy, SEEDS)
    edit(
        copy / "1_seed=1" / "config.yaml", r"log_every_steps: \d+", "log_every_steps: 7"
    )
    done = run(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 jobs were finished before and are skipped" in done.stdout.splitlines()
    edit(
        copy / "1_seed=1" / "environment.json", r'("src/tiny/cnn.py": ")....', r"\1...."
    )
    done = run(*sweep_words(copy, SEEDS + 1))
    assert done.returncode == 0
    warning = "warning: code or data have changed since they ran: src/tiny/cnn.py\n"
    assert done.stderr == warning
    edit(
        copy / "2_seed=2" / "environment.json",
        r'"files_sha256": {}',
        '"files_sha256": {"gone": "0"}',
    )
    assert "src/tiny/cnn.py and 1 more\n" in run(*sweep_words(copy, SEEDS + 1)).stderr
    edit(copy / "1_seed=1" / "config.yaml", r"\n  lr: .*", "\n  lr: 0.5")
    before = contents(copy / "1_seed=1")
    done = run(*sweep_words(copy, SEEDS + 1))
    assert (done.returncode, "| 3 |" in done.stdout) == (2, False)
    [_, line] = done.stderr.splitlines()
    assert line.startswith(
        f"error: optimizer.lr: expected 0.5 as in {copy / '1_seed=1'}, got 0.0"
    )
    assert "undo that, or choose another hydra.sweep.dir" in line
    assert contents(copy / "1_seed=1") == before


@pytest.mark.long
@pytest.mark.parametrize(
    ("edited", "is_refused"),
    [
        ("src/tiny/cnn.py", True),
        ("configs/model/cnn.yaml", True),
        ("src/tiny/recurrent.py", False),
        ("configs/model/rnn.yaml", False),
    ],
)
def test_a_job_that_starts_after_an_edit_is_refused(
    edited: str, is_refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would have other code or settings than the jobs before it; other files may
    change. The command, given again, trains it with the edited file."""
    project = tmp_path / "project"
    sweep = tmp_path / "sweep"
    shutil.copytree(ROOT, project)
    words = [
        "--multirun",
        f"hydra.sweep.dir={sweep}",
        *QUICK,
        "trainer.max_steps=600",
        "seed=0,1",
    ]
    monkeypatch.delenv("PYTHONPATH")  # which has ROOT's modules
    process = begin("train.py", *words, cwd=project)
    until(lambda: rows(sweep / "0_seed=0") > 2, process)
    with open(project / edited, "a") as file:
        file.write("# edited\n")
    out, errors = process.communicate(timeout=200)
    assert "Traceback" not in errors
    line = (
        f"error: {edited}: expected the file with which {sweep} was submitted, got an"
        " edited one"
    )
    assert (errors.count(line), errors.count("\n")) == (is_refused, is_refused)
    assert process.returncode == is_refused
    assert ("1 of 2 runs are left out" in out) == is_refused
    done = in_project(project, sys.executable, "train.py", *words)
    assert "| 2 |" in done.stdout, done.stderr


def test_a_begun_job_that_is_requeued_after_an_edit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the preset. Negative controls: the file that was submitted; a run that
    is no job."""
    monkeypatch.setenv(launch.folders.SUBMISSION, "")
    run = tmp_path / "0_seed=0"
    name = "src/tiny/cnn.py"
    run.mkdir()
    record.write_json(
        run / "environment.json", {"imported_files": {name: "", "src/gone.py": ""}}
    )
    now = job.imported_files(run)
    assert [*now] == [name]
    record.write_json(tmp_path / record.SWEEP, {"submissions": {"": now}})
    launch.folders.require_submitted(run, job.imported_files(run))
    record.write_json(tmp_path / record.SWEEP, {"submissions": {"": {name: "another"}}})
    with pytest.raises(InputError, match=f"{name}: expected the file with which"):
        launch.folders.require_submitted(run, job.imported_files(run))
    monkeypatch.delenv(launch.folders.SUBMISSION)
    launch.folders.require_submitted(run, job.imported_files(run))


def test_a_job_of_an_earlier_command_keeps_to_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited in a queue while the command was given again after edits, for jobs of
    its own."""
    lists = {"first": {"a.py": "1"}, "second": {"a.py": "2"}}
    record.write_json(tmp_path / record.SWEEP, {"submissions": lists})
    for name, digest in (("first", "1"), ("second", "2")):
        monkeypatch.setenv(launch.folders.SUBMISSION, name)
        launch.folders.require_submitted(tmp_path / "0", {"a.py": digest})
        with pytest.raises(InputError, match=r"a.py: expected the file with which"):
            launch.folders.require_submitted(tmp_path / "0", {"a.py": "another"})
    # a cluster that passes no variables on
    monkeypatch.setenv(launch.folders.SUBMISSION, "")
    launch.folders.require_submitted(tmp_path / "0", {"a.py": "2"})
    with pytest.raises(InputError, match=r"a.py: expected the file with which"):
        launch.folders.require_submitted(tmp_path / "0", {"a.py": "1"})


@pytest.mark.long
def test_parallel_jobs_end_with_their_sweep(tmp_path: Path) -> None:
    """Killed by SIGKILL, it can pass no signal on; each job saves a checkpoint. Their
    errors have their label."""
    words = (
        *QUICK,
        "trainer.max_steps=100000",
        "trainer.max_epochs=100000",
        "seed=0,1",
    )
    process = begin("train.py", "-m", f"hydra.sweep.dir={tmp_path}", *JOBLIB, *words)
    until(
        lambda: all(rows(tmp_path / name) > 2 for name in ("0_seed=0", "1_seed=1")),
        process,
    )
    process.kill()
    process.communicate(timeout=60)  # the pipes are open until all have ended
    summaries = [
        record.read_summary(tmp_path / name) for name in ("0_seed=0", "1_seed=1")
    ]
    assert [each["status"] for each in summaries] == ["interrupted"] * 2
    # whose parent is another
    forks = (*JOBLIB, "hydra.launcher.backend=multiprocessing")
    done = run(
        "train.py",
        "-m",
        f"hydra.sweep.dir={tmp_path / 'forks'}",
        *forks,
        *QUICK,
        "seed=0,1",
    )
    assert (done.returncode, "| 2 |" in done.stdout) == (0, True), done.stderr
    bad = ("trainer.max_steps=1", "trainer.shards=1,7")
    done = run(
        "train.py", "-m", f"hydra.sweep.dir={tmp_path / 'other'}", *JOBLIB, *QUICK, *bad
    )
    [error] = [line for line in done.stderr.splitlines() if "error: " in line]
    assert error.startswith(
        "[1_trainer.shards=7] error: trainer.shards: expected a divisor"
    )


@pytest.mark.long
def test_a_changed_job_ends_a_parallel_sweep(copy: Path) -> None:
    edit(copy / "1_seed=1" / "config.yaml", r"\n  lr: .*", "\n  lr: 0.5")
    done = run(*sweep_words(copy, SEEDS, *JOBLIB))
    assert done.returncode == 2
    assert "error: optimizer.lr: expected 0.5" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_drawn_seed_is_no_change() -> None:
    composed = OmegaConf.create({"seed": None, "seeds": {"init": "${seed}"}})
    assert config.resolve(composed, seed=5) == {"seed": 5, "seeds": {"init": 5}}


@pytest.mark.long
def test_a_sweep_with_drawn_seeds_is_repeated(tmp_path: Path) -> None:
    words = (
        "--multirun",
        f"hydra.sweep.dir={tmp_path}",
        *QUICK,
        "seed=null",
        "model.channels=[4],[8]",
    )
    for _ in range(2):
        done = run("train.py", *words)
        assert (done.returncode, done.stderr) == (0, "")
    assert "2 jobs were finished before and are skipped" in done.stdout


@pytest.mark.long
@pytest.mark.parametrize("launcher", [(), JOBLIB])
def test_a_sweep_killed_at_a_random_moment_ends_with_the_same_bits(
    launcher: tuple[str, ...], quick_sweep: Path, tmp_path: Path
) -> None:
    """All its processes are killed at once; `make test-kills` does it more often."""
    hits = killed(
        Case("", launcher, "sweeps", SEEDS), tmp_path / "sweep", 8, 1, random.Random()
    )
    assert different(quick_sweep, tmp_path / "sweep") == [], hits


@pytest.mark.long
def test_a_sweep_may_get_more_seeds(quick_sweep: Path, copy: Path) -> None:
    """Jobs of the plan keep their numbers. Negative control: fewer are refused."""
    done = run(*sweep_words(copy, 3))
    assert done.returncode == 0, done.stderr
    assert "| 3 |" in done.stdout
    assert "expected the jobs" in refusal(run(*sweep_words(copy, SEEDS)))


@pytest.mark.long
@pytest.mark.parametrize("launcher", [(), JOBLIB])
def test_values_may_be_added_to_any_key(
    launcher: tuple[str, ...], tmp_path: Path
) -> None:
    """Jobs are found by their overrides, in any order of keys, and keep their numbers;
    new ones get the next. Negative controls: a job that is missing, another key."""
    words = ("train.py", "--multirun", f"hydra.sweep.dir={tmp_path}", *QUICK, *launcher)
    rates = "optimizer.lr=0.01,0.001"

    def names() -> list[str]:
        return sorted(path.parent.name for path in tmp_path.glob("*/summary.json"))

    assert run(*words, rates, "seed=range(1)").returncode == 0
    one = [f"{n}_optimizer.lr={rate},seed=0" for n, rate in enumerate((0.01, 0.001))]
    assert names() == one
    done = run(*words, rates, "seed=0,1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 jobs were finished before and are skipped" in done.stdout
    more = ["2_optimizer.lr=0.01,seed=1", "3_optimizer.lr=0.001,seed=1"]
    assert names() == [*one, *more]
    for name in names():
        _, _, pairs = name.partition("_")
        rate, seed = (pair.partition("=")[2] for pair in pairs.split(","))
        written = record.read_config(tmp_path / name)
        assert (str(written.optimizer.lr), str(written.seed)) == (rate, seed)
    plan = record.read_json(tmp_path / record.SWEEP)
    assert [entry["jobs"] for entry in plan["additions"]] == [["0", "1"], ["2", "3"]]
    done = run(*words, "seed=1,0", "optimizer.lr=0.001,0.01")
    assert (done.returncode, done.stderr) == (0, "")
    assert "4 jobs were finished before and are skipped" in done.stdout
    assert names() == [*one, *more]
    for other in ([rates, "seed=0,2"], [rates, "seed=0,1", "trainer.max_steps=9"]):
        assert "expected the jobs" in refusal(run(*words, *other))
    assert names() == [*one, *more]


def test_jobs_are_numbered_by_the_plan() -> None:
    """Equal jobs are jobs of their own; overrides keep their order, which counts for
    Hydra. Negative controls: one is missing; the plan is damaged."""
    jobs = [["b=1", "a=1"], ["b=2", "a=1"], ["b=1", "a=1"]]
    assert job.in_order_of_plan(jobs, {}) == jobs
    planned = {"0": ["a=1", "b=2"], "1": ["a=1", "b=1"]}
    assert job.in_order_of_plan(jobs, planned) == [jobs[1], jobs[0], jobs[2]]
    twice = {"0": ["a=1", "b=2"], "1": ["a=1", "b=2"]}
    for plan in (twice, {"0": ["a=3"]}, {"1": ["a=1", "b=2"]}, {"x": []}):
        assert job.in_order_of_plan(jobs, plan) is None


SWEEPER = """from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore

class Minimizer(BasicSweeper):
    def __init__(self, direction):
        super().__init__(None)

node = {"_target_": "hydra_plugins.minimizer.Minimizer", "direction": "minimize"}
ConfigStore.instance().store(group="hydra/sweeper", name="minimizer", node=node)
"""


@pytest.mark.long
def test_a_sweeper_that_optimises_in_the_wrong_direction_is_stopped(
    tmp_path: Path,
) -> None:
    """After the first job, which says what is better, also if it is repeated; finished
    jobs are kept. Negative controls: the right direction, and another objective."""
    (tmp_path / "hydra_plugins").mkdir()
    (tmp_path / "hydra_plugins" / "minimizer.py").write_text(SWEEPER)
    variables = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}"}

    def sweep(name: str, *words: str) -> Any:
        chosen = ("hydra/sweeper=minimizer", "trainer.monitor=accuracy", *words)
        asked = sweep_words(tmp_path / name, 2, *QUICK, *chosen)
        return run(*asked, environment=variables)

    for direction in ("minimize", "[minimize]", "[maximize,minimize]"):
        assert refusal(sweep("a", f"hydra.sweeper.direction={direction}")) == (
            "hydra.sweeper.direction: expected maximize, of validation_accuracy, got"
            f" {direction.strip('[]').replace(',', ', ')}; set"
            " hydra.sweeper.direction=maximize"
        )
        assert [path.name for path in (tmp_path / "a").glob("*/")] == ["0_seed=0"]
    for name, word in (
        ("a", "hydra.sweeper.direction=maximize"),
        ("b", "objective=validation_loss"),
    ):
        done = sweep(name, word)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("monitor", "objective", "expected"),
    [
        (("accuracy", True), "validation_accuracy", "maximize"),
        (("accuracy", True), "last_test_accuracy", "maximize"),
        (("accuracy", True), "last_train_loss", "minimize"),
        (("error_rate", False), "validation_error_rate", "minimize"),
        (("loss", True), "validation_loss", "maximize"),
        (("accuracy", True), "validation_f1", None),
    ],
)
def test_the_direction_of_an_objective(
    monitor: tuple[str, bool], objective: str, expected: str | None
) -> None:
    """That of the monitored value; of losses; of others, it is not known."""
    assert record.Monitor(*monitor).direction_of(objective) == expected


@pytest.mark.long
def test_jobs_may_have_names_of_the_users_own(tmp_path: Path) -> None:
    """Also names that begin with a number which is not the job's."""
    words = sweep_words(
        tmp_path / "sweep", SEEDS, *QUICK, "hydra.sweep.subdir='1_${seed}'"
    )
    for _ in range(2):  # the second time, both are finished
        done = run(*words)
        assert (done.returncode, done.stderr) == (0, "")
    assert sorted(path.name for path in (tmp_path / "sweep").glob("1_*")) == [
        "1_0",
        "1_1",
    ]


def test_another_sweep_or_process_in_its_folder_is_refused(copy: Path) -> None:
    """In one line, before the first job; the plan is kept. Negative control: the tests
    above."""
    before = (copy / record.SWEEP).read_text()
    for words in (["trainer.max_steps=5"], ["seed=0,1", "model.channels=[4],[8]"]):
        assert refusal(run(*sweep_words(copy, SEEDS, *words))).startswith(
            "hydra.sweep.dir: expected "
        )
    assert (copy / record.SWEEP).read_text() == before
    with record.lock(copy, "sweep"):
        refusal(run(*sweep_words(copy, SEEDS)))


def test_a_damaged_plan_is_refused(copy: Path) -> None:
    """Exit status 2 and one line; control characters in a readable plan are escaped."""
    for text in ("", "{}", '{"command": [3], "jobs": []}', "[]"):
        (copy / record.SWEEP).write_text(text)
        assert record.SWEEP in refusal(run("scripts/resume.py", str(copy)))
    (copy / record.SWEEP).write_text(json.dumps({"command": ["\x1b[2J; true"]}))
    done = run("scripts/resume.py", str(copy))
    assert (done.returncode, "\x1b" in done.stdout) == (0, False)
    assert "'\\x1b[2J; true'" in done.stdout


@pytest.mark.long
@pytest.mark.parametrize("launcher", [(), JOBLIB])
def test_a_failed_job_leaves_the_others(
    launcher: tuple[str, ...], tmp_path: Path
) -> None:
    """The report, stderr and exit status show it, also when the sweep is repeated."""
    words = (
        "--multirun",
        f"hydra.sweep.dir={tmp_path}",
        *QUICK,
        "data.batch_size=64,4001",
    )
    for done in (
        run("train.py", *words, *launcher),
        run("train.py", *words, *launcher),
    ):
        assert done.returncode == 1
        assert "1 of 2 runs are left out" in done.stdout
        assert "data.batch_size: expected at most 4000" in done.stderr
        assert "Traceback" not in done.stderr
    assert (
        record.read_summary(tmp_path / "0_data.batch_size=64")["status"] == "finished"
    )


@pytest.mark.long
@pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="reads processes from /proc"
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("launcher", [(), JOBLIB])
def test_a_signal_stops_the_jobs_with_checkpoints(
    number: signal.Signals, launcher: tuple[str, ...], tmp_path: Path
) -> None:
    """Only the sweep gets the signal. No further jobs are started, no process is left,
    and one line is the command to resume."""
    words = [
        "train.py",
        "--multirun",
        f"hydra.sweep.dir={tmp_path}",
        *QUICK,
        "seed=0,1,2",
    ]
    process = begin(*words, *launcher, "trainer.max_steps=100000")
    jobs = [
        tmp_path / name for name in ("0_seed=0", "1_seed=1")[: 1 + (launcher == JOBLIB)]
    ]
    try:
        for job in jobs:
            until(lambda job=job: rows(job) > 2, process)
        assert len(processes(group=process.pid)) > len(jobs), "negative control"
        process.send_signal(number)
        output, errors = process.communicate(timeout=90)
        end = time.monotonic() + 30
        while processes(group=process.pid) and time.monotonic() < end:
            time.sleep(0.1)
        assert processes(group=process.pid) == []
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 128 + number
    assert "Traceback" not in errors  # joblib warns of its own semaphores
    resume = f"resume it: python train.py --multirun {' '.join(words[3:])}"
    assert [line.startswith(resume) for line in output.splitlines()].count(True) == 1
    for job in jobs:
        assert record.read_summary(job)["status"] == "interrupted"
        assert (job / "checkpoints" / "last.pt").exists()
    assert not (tmp_path / "2_seed=2").exists()


@pytest.mark.long
def test_a_report_on_real_sweeps(quick_sweep: Path, copy: Path, tmp_path: Path) -> None:
    """Another model with the same seeds: what differs is named, and only `--final`
    shows test values. The first look is the sweep's own report; seeds that are added
    later need the sequential interval. Negative control: before, the t interval
    decides."""
    other = tmp_path / "other"
    words = sweep_words(other, SEEDS, "model.channels=[4]")
    assert "test_accuracy" not in run(*words).stdout.rpartition("| metric")[2]
    found = reported(copy, other)
    [compared] = found["comparisons"]
    assert (compared["paired"], compared["not_comparable"]) == (True, [])
    assert (compared["cautions"], compared["decided_by"]) == ([], "t")
    changed = {change["key"]: change["kind"] for change in compared["differs"]}
    assert changed["model.channels"] == "configuration"
    assert changed["parameters"] == "result"
    assert found["final"] is None
    best = reported(copy, other, "--final")["final"]
    summaries = [
        record.read_summary(path.parent)
        for path in Path(best["sweep"]).glob("*/*.yaml")
    ]
    values = [summary["metrics"]["test_accuracy"] for summary in summaries]
    assert best["metrics"]["test_accuracy"]["mean"] == pytest.approx(
        sum(values) / SEEDS
    )
    assert {summary["samples"]["train"] for summary in summaries} == {4000}
    targets = {summary["fingerprints"]["validation_targets"] for summary in summaries}
    assert len(targets) == 1
    assert len(json.loads((other / record.SWEEP).read_text())["looks"]) == 3
    run(*sweep_words(other, 3, "model.channels=[4]"))
    run(*sweep_words(copy, 3))
    [compared] = reported(copy, other)["comparisons"]
    assert (compared["difference"]["n"], compared["decided_by"]) == (3, "sequential")
    assert all("added after a look" in line for line in compared["cautions"])


def reported(*words: object) -> Any:
    done = run("scripts/sweep_report.py", *map(str, words), "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
