"""A search is a seeded study of runs: repeated, resumed, shared, with trials that are
pruned."""

import json
import signal
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import (
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from seedbed import record
from seedbed.errors import InputError
from seedbed.search import space
from seedbed.search.study import SeededSampler
from tests.end_to_end.live import begin, until
from tests.running import command, refusal

QUICK = "hparams_search=quick"  # tests/tiny/configs
FOUR = "hparams_search.n_trials=4"
SPACE = {
    "rate": FloatDistribution(1e-4, 1.0, log=True),
    "size": IntDistribution(1, 64),
    "name": CategoricalDistribution(["a", "b"]),
}


def words(folder: Path, *overrides: str) -> tuple[str, ...]:
    return ("-m", "seedbed", "search", QUICK, f"hydra.sweep.dir={folder}", *overrides)


def trials(folder: Path, *overrides: str) -> list[dict[str, Any]]:
    """Run a search; return its trials by number, without their folders."""
    done = command(*words(folder, *overrides), "--json", timeout_seconds=600)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["trials"]
    assert all(Path(each.pop("run")).parent == folder for each in found)
    return sorted(found, key=lambda trial: trial["number"])


@pytest.fixture(scope="module")
def study(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("search") / "study"
    return folder, trials(folder, FOUR)


@pytest.mark.long
def test_a_pruned_trial_is_a_state(study: tuple[Path, list[dict[str, Any]]]) -> None:
    """Of the trial and of its run, which stops at that validation, and is no failure.
    Its record can be verified. Negative control: the trials before the pruner begins
    run to their ends."""
    folder, found = study
    assert [trial["state"] for trial in found[:2]] == ["finished"] * 2
    pruned = [trial for trial in found if trial["state"] == "pruned"]
    assert pruned
    for trial in found:
        run = folder / str(trial["number"])
        summary = record.read_summary(run)
        assert (summary["status"], summary["error"]) == (trial["state"], None)
        assert trial["validations"] == summary["steps"] // 3
        if trial["state"] == "finished":
            assert trial["value"] == summary["objective"]["value"]
    run = folder / str(pruned[0]["number"])
    assert record.read_summary(run)["steps"] < 12
    assert command("scripts/verify.py", str(run)).stdout.startswith("REPRODUCED")


@pytest.mark.long
def test_a_killed_search_is_resumed_to_the_same_study(
    study: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    """Killed in its second trial, after a validation, with all its processes. Nor does
    it run what has ended again; more trials follow those."""
    killed = tmp_path / "killed"
    process = begin(*words(killed, FOUR), start_new_session=True)
    metrics = killed / "1" / "metrics.csv"
    until(lambda: metrics.exists() and "validation" in metrics.read_text(), process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert trials(killed, FOUR) == study[1]
    before = (killed / "0" / "summary.json").stat().st_mtime_ns
    assert trials(killed, "hparams_search.n_trials=5")[:4] == study[1]
    assert (killed / "0" / "summary.json").stat().st_mtime_ns == before


@pytest.mark.long
def test_processes_share_a_study(tmp_path: Path) -> None:
    """Each trial is run once, and there are as many as were asked for."""
    started = [begin(*words(tmp_path / "study", FOUR)) for _ in range(2)]
    outputs = [process.communicate(timeout=600)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0]
    begun = [
        line for text in outputs for line in text.splitlines() if ": optimizer" in line
    ]
    assert sorted(line.partition(":")[0] for line in begun) == [
        f"trial {n}" for n in range(4)
    ]
    assert all(any(line in text for line in begun) for text in outputs)
    assert {each["state"] for each in trials(tmp_path / "study", FOUR)} <= {
        "finished",
        "pruned",
    }


@pytest.mark.long
def test_the_wrong_direction_is_refused(tmp_path: Path) -> None:
    """At the first validation, which knows what is monitored; the search can be
    corrected."""
    done = command(*words(tmp_path / "study", "hparams_search.direction=minimize"))
    assert done.returncode == 2
    assert (
        "hparams_search.direction: expected maximize, of validation_accuracy"
        in done.stderr
    )


def test_another_study_in_the_folder_is_refused(tmp_path: Path) -> None:
    """Before anything is trained, with the first key that differs."""
    folder = tmp_path / "study"
    folder.mkdir()
    asked = space.read([QUICK])
    record.write_json(folder / "search.json", asked.plain)
    before = (folder / "search.json").read_bytes()
    for word, key in (
        ("hparams_search.seed=1", "seed"),
        ("trainer.max_steps=9", "overrides"),
    ):
        message = refusal(command(*words(folder, word)))
        assert message.startswith(f"hparams_search.{key}: expected ")
    assert {path.name for path in folder.iterdir()} == {"search.json"}
    assert (folder / "search.json").read_bytes() == before


@pytest.mark.parametrize(
    ("word", "line"),
    [
        (
            "hparams_search=nowhere",
            "hparams_search: expected one file of configs/hparams_search/",
        ),
        ("hparams_search.n_trial=3", "did you mean n_trials"),
        ("hparams_search.direction=up", "expected maximize or minimize, got up"),
        (
            "hparams_search.n_trials=many",
            "hparams_search.n_trials: expected int, got 'many'",
        ),
        (
            "hparams_search.params.optimizer.lr=interval(1)",
            "hparams_search.params.optimizer.lr: ",
        ),
        (
            "hparams_search.params.optimizer.rl=interval(1,2)",
            "did you mean optimizer.lr",
        ),
        (
            "hparams_search.sampler._target_=optuna.samplers.TPE",
            "hparams_search.sampler",
        ),
        ("trainer.max_step=3", "did you mean trainer.max_steps"),
    ],
)
def test_invalid_searches_are_one_line(word: str, line: str, tmp_path: Path) -> None:
    """And leave no folder."""
    folder = tmp_path / "study"
    asked = [
        w
        for w in words(folder, word)
        if w != QUICK or not word.startswith("hparams_search=")
    ]
    assert line in refusal(command(*asked))
    assert not folder.exists()


@pytest.mark.parametrize(
    ("sweep", "expected"),
    [
        ("choice(a,b)", CategoricalDistribution(["a", "b"])),
        ("1,2", CategoricalDistribution(["1", "2"])),
        # as Hydra, without the stop
        ("range(8,64,step=8)", IntDistribution(8, 56, step=8)),
        ("range(1,4)", IntDistribution(1, 3)),
        ("range(0.0,1.0,step=0.25)", FloatDistribution(0.0, 0.75, step=0.25)),
        ("interval(1,2)", FloatDistribution(1.0, 2.0)),
        ("int(interval(1,9))", IntDistribution(1, 9)),
        ("tag(log,interval(0.1,1))", FloatDistribution(0.1, 1.0, log=True)),
    ],
)
def test_sweeps_are_distributions(sweep: str, expected: object) -> None:
    assert space.distributions_of({"key": sweep}) == {"key": expected}


@pytest.mark.parametrize(
    "sweep", ["3", "interval(0.1)", "range(4,1)", "tag(log,interval(0,1))"]
)
def test_other_values_are_no_sweeps(sweep: str) -> None:
    with pytest.raises(
        InputError, match=r"hparams_search\.params\.key: expected choice"
    ):
        space.distributions_of({"key": sweep})


@pytest.mark.parametrize(
    "spec",
    [
        {"_target_": "optuna.samplers.RandomSampler"},
        {"_target_": "optuna.samplers.TPESampler", "n_startup_trials": 3},
        {
            "_target_": "optuna.samplers.TPESampler",
            "n_startup_trials": 3,
            "multivariate": True,
        },
    ],
)
def test_trials_depend_on_seed_and_history_alone(spec: dict[str, Any]) -> None:
    """A process that dies after any draw of any trial changes none, also in the middle
    of one. Negative control: another seed does."""

    def values(seed: int, stops: bool) -> list[dict[str, Any]]:
        storage = optuna.storages.InMemoryStorage()
        create = {"storage": storage, "study_name": "study", "load_if_exists": True}
        study = optuna.create_study(**create, sampler=SeededSampler(spec, seed))
        for number in range(8):
            trial = study.ask()
            for key, distribution in SPACE.items():
                if stops:  # another process takes the trial over
                    study = optuna.create_study(
                        **create, sampler=SeededSampler(spec, seed)
                    )
                    trial = optuna.trial.Trial(study, trial._trial_id)
                trial._suggest(key, distribution)
            study.tell(number, trial.params["rate"])
        return [trial.params for trial in study.trials]

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    whole = values(0, stops=False)
    assert whole == values(0, stops=True)
    assert whole != values(1, stops=False)
    assert len({trial["rate"] for trial in whole}) == 8
