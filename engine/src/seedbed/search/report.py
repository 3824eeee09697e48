"""The report on a search: its trials, the best first."""

from pathlib import Path
from typing import Any

import optuna
from optuna.trial import TrialState

from seedbed.record import text

_MOST = 10  # trials that are shown
_STATES = {
    TrialState.COMPLETE: "finished",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "running",
}


def make(study: optuna.Study, folder: Path) -> dict[str, Any]:
    """Return the trials: those that finished from the best to the worst, then the
    others."""
    is_up = study.direction == optuna.study.StudyDirection.MAXIMIZE
    trials = study.get_trials(deepcopy=False)
    ended = [trial for trial in trials if trial.state is TrialState.COMPLETE]
    ended.sort(key=lambda trial: trial.value or 0.0, reverse=is_up)
    others = [trial for trial in trials if trial.state is not TrialState.COMPLETE]
    return {
        "direction": study.direction.name.lower(),
        "trials": [
            {
                "run": str(folder / str(trial.number)),
                "number": trial.number,
                "state": _STATES.get(trial.state, "waiting"),
                "value": trial.value if trial.state is TrialState.COMPLETE else None,
                "validations": len(trial.intermediate_values),
                "params": trial.params,
            }
            for trial in [*ended, *others]
        ],
    }


def describe(made: dict[str, Any]) -> str:
    """Return the best trials as a table, and how many there are of each state."""
    trials = made["trials"]
    states = [trial["state"] for trial in trials]
    counts = ", ".join(
        f"{states.count(state)} {state}" for state in dict.fromkeys(states)
    )
    rows = [
        {"run": trial["run"], "value": trial["value"], **trial["params"]}
        for trial in trials
        if trial["state"] == "finished"
    ]
    keys = dict.fromkeys(key for row in rows for key in row)
    table = text.of_rows(rows[:_MOST], list(keys)) if rows else []
    more = [f"({len(rows) - _MOST} more: --json)"] if len(rows) > _MOST else []
    return "\n".join([f"{len(trials)} trials: {counts}", *table, *more])
