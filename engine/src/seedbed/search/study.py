"""An Optuna study whose trials are runs of train.py, in the folders 0, 1, ... of a
search.

A study is resumed by the same command: a trial whose process is gone is continued, with
the same values and bits. With one process, the trials depend on the seed and the
earlier trials alone, so the command in another folder gives the same study. Several
processes may work on one study: give the command several times at once.
"""

import fcntl
import hashlib
import os
import shlex
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState

from seedbed import config, launch, record, signals
from seedbed.config import build, compose, interpolations
from seedbed.errors import InputError, print_error
from seedbed.launch import pruning
from seedbed.record import Monitor, text
from seedbed.search import space
from seedbed.search.space import Asked

PLAN = "search.json"  # in the folder of a search: what it was asked for
_STUDY = "study.journal"
_ENDED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)


class SeededSampler(BaseSampler):
    """Builds another sampler anew for each draw, with a seed made from study, trial and
    key.

    So that no generator's state is lost with a process: a study that is resumed goes on
    as if it had not stopped.
    """

    def __init__(self, spec: Mapping[str, Any], seed: int) -> None:
        self._spec = spec
        self._seed = seed
        self._seeded(())

    def _seeded(self, position: tuple[object, ...]) -> BaseSampler:
        digest = hashlib.sha256(repr((self._seed, *position)).encode()).digest()
        seed = int.from_bytes(digest[:4], "big")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            built: BaseSampler = build.build(
                {**self._spec, "seed": seed}, f"{space.GROUP}.sampler"
            )
        return built

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        self._seeded((trial.number,)).before_trial(study, trial)

    def after_trial(
        self, study: optuna.Study, trial: FrozenTrial, state: TrialState, values: Any
    ) -> None:
        self._seeded((trial.number,)).after_trial(study, trial, state, values)

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        sampler = self._seeded((trial.number,))
        space: dict[str, BaseDistribution] = sampler.infer_relative_search_space(
            study, trial
        )
        return space

    def sample_relative(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],
    ) -> dict[str, Any]:
        sampler = self._seeded((trial.number,))
        drawn: dict[str, Any] = sampler.sample_relative(study, trial, search_space)
        return drawn

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        sampler = self._seeded((trial.number, param_name))
        return sampler.sample_independent(study, trial, param_name, param_distribution)


class Search:
    """A study in a folder, which this process works on."""

    def __init__(self, folder: Path, asked: Asked) -> None:
        """Create the study, or continue it; raise InputError if the folder has another
        one."""
        self.folder = folder.absolute()
        self.asked = asked
        self._space = space.distributions_of(asked.params)
        sampler = SeededSampler(asked.sampler, asked.seed)
        pruner = build.build(asked.pruner, f"{space.GROUP}.pruner")
        lowest, _ = self._settings_of(
            {key: _lowest(each) for key, each in self._space.items()}
        )
        self._objective = lowest.objective
        self._write_plan()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            storage = JournalStorage(JournalFileBackend(str(self.folder / _STUDY)))
        self.study = optuna.create_study(
            storage=storage,
            sampler=sampler,
            pruner=pruner,
            study_name="search",
            direction=asked.direction,
            load_if_exists=True,
        )

    def _write_plan(self) -> None:
        path = self.folder / PLAN
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                if any(self.folder.iterdir()):
                    raise InputError(
                        "hydra.sweep.dir: expected a new folder or that of a search,"
                        f" got {self.folder}; choose another"
                    )
                record.write_json(path, self.asked.plain)
        except OSError as error:
            raise InputError(
                "hydra.sweep.dir: expected a folder that can be written, got"
                f" {error.strerror}"
            ) from None
        before = record.read_json(path)
        for key, value in self.asked.plain.items():
            if text.as_json(before.get(key)) != text.as_json(value):
                raise InputError(
                    f"{space.GROUP}.{key}: expected"
                    f" {text.as_json(before.get(key), None)} as in {self.folder}, got"
                    f" {text.as_json(value, None)}; choose another hydra.sweep.dir"
                )

    def run(self) -> int:
        """Run trials until there are `n_trials`; return the exit status."""
        while True:
            with ExitStack() as held:
                trial = self._next(held)
                if trial is None:
                    return 0
                status = self._run(trial)
                if status in signals.INTERRUPTED:
                    return status

    def _next(self, held: ExitStack) -> Trial | None:
        """Return a trial that no process works on, or a new one, locked for this
        process."""
        with _one_at_a_time(self.folder / ".asking"):
            trials = self.study.get_trials(deepcopy=False)
            for trial in trials:
                if trial.state not in _ENDED and self._is_locked(trial.number, held):
                    return Trial(self.study, trial._trial_id)
            if len(trials) >= self.asked.n_trials:
                return None
            new = self.study.ask()
            self._is_locked(new.number, held)
            return new

    def _is_locked(self, number: int, held: ExitStack) -> bool:
        """Return whether a trial could be locked; the lock lasts as long as `held`."""
        trial_folder = self.folder / ".trials" / str(number)
        trial_folder.mkdir(parents=True, exist_ok=True)
        try:
            held.enter_context(record.lock(trial_folder, "trial"))
            return True
        except InputError:
            return False

    def _run(self, trial: Trial) -> int:
        """Run a trial and tell the study how it ended; return the exit status of the
        run."""
        values = {key: _suggest(trial, key, each) for key, each in self._space.items()}
        run = self.folder / str(trial.number)
        words = self._words(values)
        print(
            f"trial {trial.number}: {' '.join(words[len(self.asked.overrides) :])}",
            flush=True,
        )
        # by a training process whose search was killed: it is saving
        while record.is_held(run):
            time.sleep(0.1)
        folder_word = f"hydra.run.dir={text.quoted(run)}"
        os.environ["SEEDBED_COMMAND"] = shlex.join(
            ["python", "train.py", *words, folder_word]
        )
        with pruning.answering(lambda monitor: self._should_prune(trial, run, monitor)):
            try:
                settings, templates = self._settings_of(values)
                status = launch.start(settings, run, templates)
            except InputError as error:  # of these values: others may train
                status = print_error(error)
        ended = (
            record.read_summary(run).get("status") if record.is_run(run) else "failed"
        )
        if ended == "finished" and (value := launch.objective(run)) is not None:
            self.study.tell(trial.number, value)
            print(f"trial {trial.number}: {value:.6g}", flush=True)
        elif ended == "pruned":
            self.study.tell(trial.number, state=TrialState.PRUNED)
            print(f"trial {trial.number}: pruned", flush=True)
        elif status not in signals.INTERRUPTED:
            self.study.tell(trial.number, state=TrialState.FAIL)
            print(f"trial {trial.number}: failed", flush=True)
        return status

    def _should_prune(self, trial: Trial, run: Path, monitor: Monitor) -> bool:
        """Report the validations of a run that the study does not have; decide after
        each.

        Their numbers, not their steps, are the steps of the study: trials may have
        other batches.
        """
        objective = self._objective or monitor.metric
        expected = monitor.direction_of(objective)
        if expected not in (None, self.asked.direction):
            raise InputError(
                f"{space.GROUP}.direction: expected {expected}, of {objective}, got"
                f" {self.asked.direction}"
            )
        known = self.study.get_trials(deepcopy=False)[trial.number].intermediate_values
        cells = [
            row[monitor.name]
            for row in record.read_metrics(run)
            if row["phase"] == "validation"
        ]
        if known and trial.should_prune():  # it was stopped before it heard of it
            return True
        for number in range(len(known), len(cells)):
            trial.report(float(cells[number]), number)
            if trial.should_prune():
                return True
        return False

    def _words(self, values: Mapping[str, Any]) -> list[str]:
        return [
            *self.asked.overrides,
            *(space.override(k, v) for k, v in values.items()),
        ]

    def _settings_of(
        self, values: Mapping[str, Any]
    ) -> tuple[config.Settings, dict[str, str]]:
        composed = compose.compose(*self._words(values))
        return config.check(config.resolve(composed)), interpolations.templates_of(
            composed
        )


def _lowest(distribution: BaseDistribution) -> Any:
    return (
        getattr(distribution, "low", None) or getattr(distribution, "choices", [0])[0]
    )


def _suggest(trial: Trial, key: str, distribution: BaseDistribution) -> Any:
    if isinstance(distribution, FloatDistribution):
        low = distribution.low
        high = distribution.high
        return trial.suggest_float(
            key, low, high, step=distribution.step, log=distribution.log
        )
    if isinstance(distribution, IntDistribution):
        return trial.suggest_int(
            key,
            distribution.low,
            distribution.high,
            step=distribution.step,
            log=distribution.log,
        )
    return trial.suggest_categorical(key, getattr(distribution, "choices", []))


@contextmanager
def _one_at_a_time(path: Path) -> Iterator[None]:
    """Wait until no other process is in this block; the system ends it when a process
    dies."""
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
