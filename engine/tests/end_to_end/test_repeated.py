"""The command of a run, given again: as a scheduler does that requeues a job."""

import shutil
import signal
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from seedbed import record
from tests import pages
from tests.end_to_end.live import LSTM, interrupted, rows, started, until
from tests.made_up_runs import contents
from tests.running import refusal, train, trained
from tests.ways import differences


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("finished") / "run")


def again(folder: Path, *words: str) -> tuple[int, str, str]:
    done = train(folder, "determinism.threads=1", "trainer.max_steps=12", *words)
    return done.returncode, done.stdout, done.stderr


def test_a_finished_run_is_done_at_once(finished: Path) -> None:
    """No file changes, also if settings that change no bit are others, as `QUICK`'s are
    here."""
    before = contents(finished)
    expected = f"{finished}: finished before, nothing to do\n"
    assert again(finished) == (0, expected, "")
    assert again(finished, "data.num_workers=2") == (0, expected, "")
    assert contents(finished) == before


def test_other_bits_are_refused_with_the_first_key(finished: Path) -> None:
    before = contents(finished)
    status, _, line = again(finished, "optimizer.lr=0.5", "seed=3")
    assert status == 2
    assert line.startswith("error: seed: expected 0 as in ")
    assert line.endswith("got 3; undo that, or choose another hydra.run.dir\n")
    assert line.count("\n") == 1
    assert contents(finished) == before


def test_a_finished_run_of_other_code_or_data_is_not_taken_for_a_new_one(
    finished: Path, tmp_path: Path
) -> None:
    """Status 1 and one line with the way out; no file changes. Negative control: see
    above."""
    for name, kind in (
        ("src/tiny/cnn.py", "imported_files"),
        ("table.csv", "files_sha256"),
    ):
        copy = Path(shutil.copytree(finished, tmp_path / kind))
        environment = record.read_json(copy / "environment.json")
        environment[kind] |= {name: "0" * 64}
        record.write_json(copy / "environment.json", environment)
        before = contents(copy)
        assert again(copy) == (
            1,
            "",
            (
                f"error: {copy}: finished before code or data changed ({name}); train"
                " in another folder (hydra.run.dir=...), or undo that\n"
            ),
        )
        assert contents(copy) == before


def test_a_longer_run_names_the_command_that_extends_the_finished_one(
    finished: Path,
) -> None:
    """It extends it under a schedule that does not depend on the length."""
    done = train(finished, "determinism.threads=1", "trainer.max_steps=14")
    expected = (
        f"error: trainer.max_steps: expected 12 as in {finished}, got 14; to extend the"
        " run:"
    )
    line = f"{expected} python scripts/resume.py {finished} trainer.max_steps=14\n"
    assert (done.returncode, done.stderr) == (2, line)


def test_a_drawn_seed_is_kept(tmp_path: Path) -> None:
    trained(tmp_path / "run", "seed=null")
    seed = record.read_config(tmp_path / "run").seed
    assert again(tmp_path / "run", "seed=null")[0] == 0
    assert record.read_config(tmp_path / "run").seed == seed


def test_a_run_that_failed_before_its_first_step_starts_with_new_settings(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    assert again(folder, "trainer.device=cuda:9")[0] == 2
    assert again(folder, "trainer.device=cpu", "seed=1")[0] == 0
    assert record.read_config(folder).seed == 1


def test_classes_that_a_begun_folder_names_are_not_built(
    finished: Path, tmp_path: Path
) -> None:
    """The command names callbacks and loggers; the folder may come from somebody else.

    Negative control: with that callback in the command, it is built.
    """
    folder = Path(shutil.copytree(finished, tmp_path / "run"))
    summary = record.read_summary(folder)
    record.write_summary(folder, {**summary, "status": "interrupted"})
    config = record.read_config(folder)
    config.callbacks = {"own": {"_target_": "os.mkdir", "path": str(tmp_path / "made")}}
    record.write_atomically(folder / "config.yaml", OmegaConf.to_yaml(config))
    status, _, line = again(folder)
    assert status == 0, line
    assert not (tmp_path / "made").exists()
    assert record.read_summary(folder)["status"] == "finished"
    record.write_summary(folder, {**summary, "status": "interrupted"})
    again(folder, f"+callbacks.own={{_target_:os.mkdir,path:{tmp_path / 'made'}}}")
    assert (tmp_path / "made").exists()


@pytest.mark.long
def test_a_begun_run_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    """Also on another number of loader workers, which the command asks for."""
    whole = tmp_path / "whole"
    folder = tmp_path / "run"
    assert train(whole, *LSTM).returncode == 0
    process = started(folder)
    until(lambda: rows(folder) > 9, process)
    process.send_signal(signal.SIGTERM)
    interrupted(process, signal.SIGTERM, folder)
    done = train(folder, *LSTM, "data.num_workers=1")
    assert done.returncode == 0, done.stderr
    assert "resuming after step" in done.stdout
    assert record.read_config(folder).data.num_workers == 1
    assert differences(whole, folder) == []


CALLBACK = """
from seedbed.methods import Callback


class Drawing(Callback):
    def on_validation_end(self, run, step):
        (run.folder / "drawn.txt").write_text("a")
"""


@pytest.mark.long
def test_a_callback_may_be_edited_before_a_resume(tmp_path: Path) -> None:
    """The run goes on with the new one, and what it imports. Negative control: an
    edited model is refused, and so is the callback's file once the model imports it."""
    root = pages.copy_project(
        tmp_path / "project", {"src/project/drawing.py": CALLBACK}
    )
    model = root / "src/project/models/dense.py"
    callback = root / "src/project/drawing.py"
    words = (
        "data=points",
        "model=dense",
        "schedule=constant",
        "trainer.validate_every_epochs=1",
    )
    own = ("+callbacks.own._target_=project.drawing.Drawing", "trainer.max_steps=31")
    folder = tmp_path / "run"
    pages.run(root, "train.py", *words, *own, f"hydra.run.dir={folder}")
    (root / "src/project/plots.py").write_text('NAME = "b"\n')
    imported = CALLBACK.replace('"a"', "plots.NAME")
    callback.write_text(f"from project import plots\n{imported}")
    pages.run(root, "scripts/resume.py", str(folder), "trainer.max_steps=62")
    assert (folder / "drawn.txt").read_text() == "b"
    text = model.read_text()
    for edited in (f"{text}# edited\n", f"{text}import project.drawing  # noqa\n"):
        model.write_text(edited)
        done = pages.run(
            root, "scripts/resume.py", str(folder), "trainer.max_steps=93", status=2
        )
        assert "src/project/models/dense.py" in refusal(done)
    model.write_text(text)
    (root / "src/project/drawing.py").write_text(f"{CALLBACK}# again\n")
    (root / "src/project/models/__init__.py").write_text("# see drawing\n")
    done = pages.run(
        root, "scripts/resume.py", str(folder), "trainer.max_steps=93", status=2
    )
    assert "src/project/drawing.py" in refusal(done)
