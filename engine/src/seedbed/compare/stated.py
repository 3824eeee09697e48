"""What a record states beyond its rows: compared with a replay, or with its own tables.

A run that did not finish has no results. What else it states must follow from its
tables, and what cannot be compared is named.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from seedbed import record
from seedbed.compare import Record
from seedbed.errors import InputError
from seedbed.record import Row, chain, code, untrusted
from seedbed.record.change import NEUTRAL_KEYS

# Entries of summary.json that follow from the configuration; the rest is time and
# history.
_STATED = (
    *("seed", "task", "evaluated_by", "metric_name", "higher_is_better", "precision"),
    *("steps", "epochs"),
    *("metrics", "last_metrics", "objective", "parameters", "fingerprints"),
    *(
        "best_step",
        "best_steps",
        "tested_step",
        "stopped_early",
        "samples",
        "weights_sha256",
    ),
)
# Its history, times and machine.
_HISTORY = (
    *(
        "command",
        "error",
        "format_version",
        "gpu_peak_memory_bytes",
        "kept_steps",
        "resumes",
    ),
    *("samples_per_second", "seconds", "warnings"),
)
# Settings that say what something is called.
_NAMES = ("*.name",)
# What a run folder has beside these is for people, or of an earlier process.
_COMPARED = {
    *("config.yaml", "environment.json", "code.zip", "metrics.csv", "fingerprints.csv"),
    *("test_predictions.csv", "summary.json", "checkpoints", chain.FILE, chain.PLAN),
    "statistics.json",
}
_OF_ANY_LENGTH = (
    "task",
    "evaluated_by",
    "metric_name",
    "higher_is_better",
    "precision",
    "parameters",
)
_RESULTS = (
    "metrics.test_",
    "last_metrics.test_",
    "tested_step",
    "fingerprints.predictions",
)
_KEPT = tuple(f"weights_sha256.{prefix}" for prefix in (record.KEPT, record.BEST))
_MOST_BYTES = 1 << 30  # of a file that is compared byte for byte


def compare_stated(
    recorded: Record, folder: Path, a: Record, b: Record, ends: bool, start: int = 0
) -> tuple[list[str], list[str]]:
    """Compare what a record states with its replay in `folder`, which has the same
    bits.

    If it `ends` as the run does, the bytes of tables and predictions and the summary
    are compared too. Another replay ends with an evaluation that the run may lack, so
    its extra rows are ignored. `a` and `b` are record and replay, cut to the replayed
    steps, those after `start`.

    Returns lines on what is stated and contradicted, and names of what could not be
    compared.
    """
    run = recorded.origin.folder or Path(recorded.name)
    lines = list(_other_rows(run, folder, a, b, ends))
    if (name := recorded.origin.unlike_archive()) is not None:
        lines.append(
            f"{code.ARCHIVE}: {name} is not the file that imported_files names"
        )
    key = "statistics_sha256"
    digests = [each.origin.environment.get(key) for each in (recorded, b)]
    if digests[0] != digests[1] or not _same_bytes(run, folder, "statistics.json"):
        lines.append("statistics.json: other than in the replay")
    lines += chain.contradictions(run, recorded.origin, recorded.summary)
    new_best = _new_best(recorded)
    end = b.summary["steps"]  # of the replay: a record may state anything
    lines += _other_checkpoints(run, folder, new_best, range(start + 1, end + 1))
    earlier = [f"steps 1 to {start}"] if start else []
    if ends:
        lines += _other_results(recorded, a, b, start)
        if not _same_bytes(run, folder, "test_predictions.csv"):
            lines.append("test_predictions.csv: other predictions")
        left_out = [*earlier, *_earlier_states(recorded), *not_compared(recorded)]
        return lines, left_out
    others = ["results", "summary.json"]
    if recorded.summary.get("status") != "finished":
        contradicted, others = _compare_unfinished(recorded, run, b)
        lines += contradicted
    last = last_step(recorded)
    rest = [*earlier, *([f"steps {end + 1} to {last}"] if end < last else [])]
    return lines, [*rest, *others, *_earlier_states(recorded), *not_compared(recorded)]


def _other_results(recorded: Record, a: Record, b: Record, start: int) -> Iterator[str]:
    """Yield a line for each entry of summary.json that is another one in a replay of
    the steps after `start`."""
    x = _stated(a)
    y = _stated(b)
    for key in sorted(x.keys() | y.keys()):
        # Before a resume, other checkpoints may have been kept.
        is_in_one = key.startswith(_KEPT) and not (key in x and key in y)
        is_kept = is_in_one and bool(start or recorded.summary.get("resumes"))
        is_kept |= key == "best_steps" and start > 0
        if repr(x.get(key)) != repr(y.get(key)) and not is_kept:
            values = f"{x.get(key)!r} in the record, {y.get(key)!r} in the replay"
            yield f"summary.json: {key} is {values}"


def not_compared(*records: Record) -> list[str]:
    """Return what comparisons and replays leave out of records, by file: history,
    names, times."""
    entries = {key for recorded in records for key in recorded.summary} - {
        *_STATED,
        "status",
    }
    is_finished = all(
        recorded.summary.get("status") == "finished" for recorded in records
    )
    keys = entries.union(_HISTORY, () if is_finished else ("status",))
    files = {name for recorded in records for name in _files(recorded)} - _COMPARED
    return [
        f"summary.json: {', '.join(sorted(keys))}",
        f"config.yaml: {', '.join((*_NAMES, *NEUTRAL_KEYS))}",
        (
            "environment.json: git, platform, operations_replaced (other differences"
            " are listed)"
        ),
        "code.zip: modules of the engine that were not imported",
        "checkpoints: origin, epoch_sums, progress (seconds, kept_step, samples)",
        *sorted(files),
    ]


def other_weights(a: Record, b: Record) -> list[str]:
    """Return a line for each step in whose checkpoints two records have other
    weights."""
    folders = [recorded.origin.folder for recorded in (a, b)]
    rows_a, rows_b = (chain.checkpoints(folder) if folder else {} for folder in folders)
    steps = sorted(rows_a.keys() & rows_b.keys())
    return [
        f"{chain.FILE}: other weights in step {step}"
        for step in steps
        if record.differing(rows_a[step], rows_b[step], ["weights"])
    ]


def _files(recorded: Record) -> list[str]:
    folder = recorded.origin.folder
    return (
        [path.name for path in folder.iterdir() if path.name[0] != "."]
        if folder
        else []
    )


def _new_best(recorded: Record) -> int:
    """Return the step from which the best weights were last chosen anew, else 0."""
    return max(record.new_best_steps(recorded.summary), default=0)


def _earlier_states(recorded: Record) -> list[str]:
    """Return what is not compared of checkpoints that held another best value than a
    replay's."""
    step = _new_best(recorded)
    return (
        [f"{chain.FILE}: state before step {step}, where the best starts anew"]
        if step
        else []
    )


def _other_checkpoints(
    run: Path, folder: Path, new_best: int, replayed_steps: range
) -> Iterator[str]:
    """Yield a line for each row of a chain that is another one in the replay, or that
    the replay of its step has not.

    Before a new best, the state has a best value by another metric than the replay's.
    """
    recorded = chain.checkpoints(run)
    replayed = chain.checkpoints(folder)
    for step in sorted(recorded.keys() - replayed.keys()):
        if step in replayed_steps:
            yield f"{chain.FILE}: step {step}: a checkpoint that the replay has not"
    for step in sorted(recorded.keys() & replayed.keys()):
        names = ("weights", "state") if step >= new_best else ("weights",)
        for name in record.differing(recorded[step], replayed[step], names):
            yield f"{chain.FILE}: step {step}: another {name} than in the replay"


def _other_rows(
    run: Path, folder: Path, a: Record, b: Record, ends: bool
) -> Iterator[str]:
    """Yield a line for each table that has other rows than in the replay."""
    for name, of_a, of_b in (
        ("fingerprints.csv", a.fingerprints, b.fingerprints),
        ("metrics.csv", a.metrics, b.metrics),
    ):
        compared = of_b if ends else of_b[: len(of_a)]
        for x, y in zip_longest(of_a, compared, fillvalue=Row()):
            if record.differing(x, y):
                first = x or y
                phase = f", {first['phase']}" if "phase" in first else ""
                yield (
                    f"{name}: step {first['step']}{phase}: another row than in the"
                    " replay"
                )
                break
        else:
            if ends and not _same_bytes(run, folder, name):
                yield f"{name}: other columns or other bytes"


def _same_bytes(run: Path, folder: Path, name: str) -> bool:
    """Return whether two folders have the same file of a name, or neither has one."""
    paths = run / name, folder / name
    a, b = (
        untrusted.read_bytes(p, _MOST_BYTES) if p.is_file() else None for p in paths
    )
    return a == b


def _compare_unfinished(
    recorded: Record, run: Path, b: Record
) -> tuple[list[str], list[str]]:
    """Compare the summary of a run that did not finish with its tables and replay.

    Returns lines on what is stated and contradicted, and keys that could not be
    compared.
    """
    stated = {
        key: value for key, value in _stated(recorded).items() if value is not None
    }
    results = [key for key in stated if key.startswith(_RESULTS)]
    lines = [*_results_of_unfinished(recorded, run, results)]
    known = _known(recorded, b)
    others = []
    for key in [key for key in stated if key not in results]:
        if key not in known and not key.startswith(("metrics.", "last_metrics.")):
            others.append(key)
        elif repr(stated[key]) != repr(known.get(key)):
            values = (
                f"{stated[key]!r} in the record, {known.get(key)!r} by its tables"
                " and replay"
            )
            lines.append(f"summary.json: {key} is {values}")
    return lines, others


def _results_of_unfinished(
    recorded: Record, run: Path, stated: list[str]
) -> Iterator[str]:
    """Yield a line on test results, which no run has before it finishes."""
    files = {
        "metrics.csv": any(row["phase"] == "test" for row in recorded.metrics),
        "test_predictions.csv": (run / "test_predictions.csv").exists(),
        f"summary.json ({', '.join(stated)})": bool(stated),
    }
    if with_results := [name for name, has_results in files.items() if has_results]:
        yield (
            f"{', '.join(with_results)}: test results, but the run is"
            f" {recorded.summary.get('status')}; they were not compared: resume the run"
            " to its end"
        )


def _known(recorded: Record, b: Record) -> dict[str, Any]:
    """Return what summary.json of an unfinished run states, by its replay and its
    tables."""
    # One that was interrupted ends like its replay; others may have made steps beyond
    # their tables.
    steps, status = (recorded.summary.get(key) for key in ("steps", "status"))
    if status in ("interrupted", "pruned") and steps == b.summary["end"]:
        return _stated(b)
    results = record.Results(recorded.metrics)
    monitor = record.Monitor(
        str(b.summary["metric_name"]), bool(b.summary["higher_is_better"])
    )
    best_step = results.best_step(monitor, first=_new_best(recorded))
    tests_best = recorded.config.get("trainer.test_weights", "best") == "best"
    values = {
        "metrics": results.of(
            best_step if tests_best and best_step else results.last_step
        ),
        "last_metrics": results.last(),
        "best_step": best_step,
    }
    return {
        **record.flatten(values),
        **{key: b.summary.get(key) for key in _OF_ANY_LENGTH},
        "steps": (
            max(last_step(recorded), steps)
            if isinstance(steps, int)
            else last_step(recorded)
        ),
    }


def contradictions(summary: Mapping[str, Any], rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line for each result of a finished run that is another one in its
    metrics.csv.

    Raises InputError if a row has something else than numbers.
    """
    if summary.get("status") != "finished":
        return
    try:
        results = record.Results(rows)
    except ValueError as error:
        raise InputError(f"metrics.csv: expected numbers, got {error}") from None
    step = summary.get("tested_step")
    step = step if isinstance(step, int) else results.last_step
    logged = {"metrics": results.of(step), "last_metrics": results.last()}
    if not has_results_by_weights(summary):
        logged = {
            "metrics": {
                k: v for k, v in logged["metrics"].items() if k.startswith("test_")
            }
        }
    for entry, values in logged.items():
        stated = summary.get(entry)
        stated = stated if isinstance(stated, Mapping) else {}
        names = dict.fromkeys([*stated, *values]) if len(logged) > 1 else values
        for name in names:
            if repr(stated.get(name)) != repr(values.get(name)):
                numbers = f"{stated.get(name)}, but {values.get(name)} in metrics.csv"
                yield f"summary.json: {entry}.{name} is {numbers}"


def has_results_by_weights(summary: Mapping[str, Any]) -> bool:
    """Return whether all of `metrics` is of one set of weights; in earlier versions it
    was not."""
    return "last_metrics" in summary


def last_step(recorded: Record) -> int:
    """Return the last step of a record that has a row, 0 if there is none."""
    return max(
        (int(row["step"]) for row in recorded.fingerprints or recorded.metrics),
        default=0,
    )


def _stated(recorded: Record) -> dict[str, Any]:
    flat = record.flatten(recorded.summary)
    return {
        key: value for key, value in flat.items() if key.partition(".")[0] in _STATED
    }
