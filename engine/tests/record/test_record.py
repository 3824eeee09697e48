"""Records: files are whole, damage is detected, one process works on a run; loss
curves."""

import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

from seedbed import record
from seedbed.errors import InputError
from seedbed.record import files, plots, untrusted
from tests.made_up_runs import metrics, write_run


def logged(step: int, **more: float) -> dict[str, object]:
    return {"step": step, "loss": 1 / step, **more}


@pytest.mark.parametrize("size", [100, untrusted.MAX_LINE_BYTES, 1 << 20])
@pytest.mark.parametrize("rest", ["", f"5,{1 / 5!r}\n"])
def test_zeros_after_a_power_cut_cost_rows_and_not_the_run(
    size: int, rest: str, tmp_path: Path
) -> None:
    """They stand where rows had not reached the disk. Negative control: other
    damage."""
    path = tmp_path / "metrics.csv"
    table = record.Table(path, ("step", "loss"))
    table.append([logged(step) for step in range(1, 4)])
    table.close()
    whole = path.read_text()
    path.write_text(f"{whole}4,0.2{chr(0) * size}{rest}")
    again = record.Table(path, ("step", "loss"), lambda row: int(row["step"]) <= 3)
    again.close()
    assert path.read_text() == whole
    path.write_text(f"{whole}4,0.2,x\n")
    with pytest.raises(InputError, match="line 5"):
        record.Table(path, ("step", "loss"), lambda _: True)


def test_a_table_cut_back_and_continued_is_as_if_never_interrupted(
    tmp_path: Path,
) -> None:
    """Rows, a new column and a partial line from after the checkpoint are removed.

    Floats have full precision; missing fields are empty.
    """
    path = tmp_path / "metrics.csv"
    late = logged(3, kl=0.25)
    table = record.Table(path, ("step", "loss"))
    table.append([logged(1), {"step": 2}])
    before = path.read_bytes()
    table.append([late])
    table.close()
    whole = path.read_text()
    assert whole == f"step,loss,kl\n1,1.0,\n2,,\n3,{1 / 3!r},0.25\n"
    path.write_text(f"{whole}4,0.1999")
    again = record.Table(path, ("step", "loss"), lambda row: int(row["step"]) <= 2)
    assert path.read_bytes() == before
    again.append([late])
    again.close()
    assert path.read_text() == whole
    assert float(untrusted.read_rows(path, ("step", "loss"))[2]["loss"]) == 1 / 3


def test_files_are_replaced_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the disk fills up during a write, the old content remains, and no other
    file."""
    path = tmp_path / "summary.json"
    record.write_json(path, {"a": 1})

    def full(_descriptor: int) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            record.write_json(path, {"a": 2})
    assert record.read_json(path) == {"a": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["summary.json"]


def test_a_lock_that_leads_elsewhere_is_not_written_to(tmp_path: Path) -> None:
    """In an untrusted record, .lock may be a link. Negative control: a regular file."""
    (tmp_path / "run").mkdir()
    (tmp_path / "kept").write_text("text")
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "kept")
    with pytest.raises(OSError, match="symbolic"), record.lock(tmp_path / "run"):
        pass
    assert (tmp_path / "kept").read_text() == "text"
    (tmp_path / "kept").rename(tmp_path / ".lock")
    with record.lock(tmp_path):
        assert (tmp_path / ".lock").read_text() != "text"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_one_process_works_on_a_run_until_it_is_killed(
    method: str, tmp_path: Path
) -> None:
    """The lock is released with the process, even if a loader worker of any start
    method lives on.

    If a logger archives the run folder, it opens and closes .lock, which must not
    release it.
    """
    (tmp_path / "program.py").write_text(
        "import multiprocessing, os, shutil, time; from pathlib import Path\nfrom"
        " seedbed import record\ndef work():\n    print(os.getpid(), flush=True);"
        " time.sleep(60)\nif __name__ == '__main__':\n    with"
        " record.lock(Path('.')):\n        shutil.make_archive('../all', 'tar')\n     "
        f"   multiprocessing.get_context('{method}').Process(target=work).start()\n    "
        "    time.sleep(60)\n"
    )
    words = [sys.executable, "program.py"]
    process = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    with pytest.raises(
        InputError, match=f"alive .process {process.pid} on .+; wait for it"
    ):
        record.lock(tmp_path).__enter__()
    process.kill()
    process.wait()
    try:
        with record.lock(tmp_path):
            os.kill(child, 0)  # raises if it is dead
    finally:
        os.kill(child, 9)
        process.stdout.close()


def test_a_table_of_metrics_may_have_columns_of_its_own_at_its_end(
    tmp_path: Path,
) -> None:
    """Negative control: columns before the known ones, and repeated ones."""
    path = tmp_path / "metrics.csv"
    known = ",".join(record.METRIC_FIELDS)
    path.write_text(f"{known},kl\n1,1,1,1,1,1\n")
    assert record.read_metrics(tmp_path)[0]["kl"] == "1"
    for header in (f"kl,{known}", f"{known},kl,kl"):
        path.write_text(f"{header}\n")
        with pytest.raises(InputError, match="columns"):
            record.read_metrics(tmp_path)


def test_numbers_that_json_has_not_are_texts_and_read_as_numbers(
    tmp_path: Path,
) -> None:
    """Any JSON parser reads the files; Python's json module would write NaN
    unquoted."""
    metrics = {"test_loss": math.inf, "test_mean": -math.inf, "test_accuracy": 0.5}
    values = {
        "format_version": 1,
        "metrics": metrics,
        "error": "nan",
        "seed": [1, math.nan],
    }
    record.write_json(
        tmp_path / "summary.json", values | {"objective": {"value": math.nan}}
    )
    text = (tmp_path / "summary.json").read_text()
    assert not {"NaN", "Infinity", "-Infinity"} & set(re.findall(r"[-\w]+", text))
    found = record.read_summary(tmp_path)
    assert found["metrics"] == metrics
    assert math.isnan(found["objective"]["value"])
    assert (found["error"], found["seed"]) == ("nan", [1, "nan"])


FAILED: dict[str, Any] = {"status": "failed", "steps": 0}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("rows", "summary", "panels"),
    [
        ([row | {"accuracy": ""} for row in metrics(40)], {"metric_name": "loss"}, 1),
        (
            [row | {"accuracy": row["loss"]} for row in metrics(40)],
            {"metric_name": "accuracy"},
            1,
        ),
        ([{**row, "loss": "nan", "accuracy": "inf"} for row in metrics(40)], FAILED, 2),
        ([], FAILED, 0),
    ],
)
def test_every_run_with_a_row_gets_a_loss_curve(
    tmp_path: Path, rows: list[dict[str, str]], summary: dict[str, Any], panels: int
) -> None:
    """No warnings; one panel if the metric is the loss; without rows, an old curve is
    deleted."""
    folder = write_run(tmp_path / "my$run$", rows=rows, summary=summary)
    (folder / "loss_curve.png").touch()
    assert plots.loss_curve(folder) == (folder / "loss_curve.png" if rows else None)
    assert (folder / "loss_curve.png").exists() is bool(rows)
    assert not rows or imread(folder / "loss_curve.png").shape[1] // 700 == panels


def test_a_folder_with_another_number_of_files_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger's record may name any folder. Negative control: the number that there
    is."""
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text(name)
    read = []
    digest_of = files.of_file
    monkeypatch.setattr(
        files, "of_file", lambda path: read.append(path) or digest_of(path)
    )
    folder = str(tmp_path)
    for count in ("2", "4", "9" * 20, "x"):
        assert files.changed({folder: f"{count} files: {'0' * 64}"}) == [folder]
    assert read == []
    [digest] = files.of_folder(folder, always_contents=True).values()
    assert files.changed({folder: digest}) == []
    assert len(read) == 6


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    """A rename would remove a pipe, or a device that root writes to. Negative control:
    a link to a file."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/full"), tmp_path):
        with pytest.raises(InputError, match="expected a file to replace"):
            record.write_atomically(path, "text")
    assert pipe.is_fifo()
    assert Path("/dev/full").is_char_device()
    (tmp_path / "file").write_text("old")
    record.write_atomically(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "new"
