"""The mark: a checkout knows the configurations that its own commands have composed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from seedbed import config, project, record
from seedbed.errors import InputError
from seedbed.record import mark
from tests import tiny
from tests.made_up_runs import write_run
from tests.running import command, refusal, trained

OWN = {
    "model": {"_target_": "os.system"},
    "determinism": {"env": {"LD_PRELOAD": "mine.so"}},
}


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty project."""
    place = tmp_path / "project"
    place.mkdir()
    monkeypatch.setenv(project.PROJECT, str(place))
    return place


def is_trusted(run: Path) -> bool:
    try:
        config.require_trusted(record.read_config(run), run)
    except InputError:
        return False
    return True


def test_an_own_configuration_is_trusted_wherever_its_folder_is(checkout: Path) -> None:
    """Negative controls: an edited one, one with another's mark, another checkout, a
    lost key."""
    run = write_run(checkout / "run", config=OWN)
    assert not is_trusted(run), "not marked"
    mark.write(run)
    assert is_trusted(run)
    moved = run.rename(checkout / "moved")
    assert is_trusted(moved)
    other = write_run(checkout / "other", config={**OWN, "seed": 1})
    shutil.copy(moved / mark.FILE, other)
    assert not is_trusted(other)
    (other / mark.FILE).unlink()
    (other / mark.FILE).symlink_to(moved / mark.FILE)
    assert not is_trusted(other)
    text = (moved / "config.yaml").read_text()
    for changed in (f"{text}\n", text.replace("os.system", "os.abort")):
        (moved / "config.yaml").write_text(changed)
        assert not is_trusted(moved)
    (moved / "config.yaml").write_text(text)
    assert is_trusted(moved)
    for content in (b"", b"\xff" * 64, b"0" * 1000):
        (moved / mark.FILE).write_bytes(content)
        assert not is_trusted(moved)
    mark.write(moved)
    (checkout / mark.KEY).unlink()
    assert not is_trusted(moved), "the key was lost"
    mark.write(other)
    assert not is_trusted(moved), "another key"


def test_the_values_of_interpolations_are_marked_too(checkout: Path) -> None:
    """They reach the configuration by an override."""
    run = write_run(checkout / "run", config=OWN)
    mark.write(run)
    (run / "interpolations.json").write_text('{"model._target_": "${notes}"}')
    assert not is_trusted(run)


def test_a_key_that_others_can_read_is_none(checkout: Path) -> None:
    """Git gives a committed file mode 644. Negative control: the same key, private."""
    run = write_run(checkout / "run", config=OWN)
    mark.write(run)
    key = checkout / mark.KEY
    assert key.stat().st_mode & 0o777 == 0o600
    key.chmod(0o644)
    assert not is_trusted(run)
    mark.write(run)  # as without a key
    key.chmod(0o600)
    assert is_trusted(run)


def test_without_a_key_there_is_no_mark(checkout: Path) -> None:
    """The project cannot be written. Negative control: it can."""
    run = write_run(checkout.parent / "run", config=OWN)
    (checkout / ".seedbed").touch()  # not a folder
    mark.write(run)
    assert not (run / mark.FILE).exists()
    (checkout / ".seedbed").unlink()
    mark.write(run)
    assert is_trusted(run)


def test_processes_that_start_together_have_one_key(
    checkout: Path, tmp_path: Path
) -> None:
    """Each marks a run, and all runs are known afterwards; no temporary file is
    left."""
    runs = [write_run(tmp_path / f"{n}", config=OWN) for n in range(8)]
    program = "import sys, pathlib; from seedbed.record import mark\nsys.stdin.read()\n"
    program += "mark.write(pathlib.Path(sys.argv[1]))"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(run)], stdin=subprocess.PIPE
        )
        for run in runs
    ]
    for process in started:
        assert process.stdin is not None
        process.stdin.close()
    assert [process.wait(120) for process in started] == [0] * 8
    assert all(map(is_trusted, runs))
    assert os.listdir(checkout / ".seedbed") == ["key"]


@pytest.mark.long
def test_commands_build_what_the_own_command_line_named(tmp_path: Path) -> None:
    """Also after a resume that changes a setting. Negative controls: a replay that is
    kept, and the run with an edited configuration."""
    run = tmp_path / "run"
    kept = tmp_path / "kept"
    done = command(
        *("train.py", *tiny.OVERRIDES, "determinism.threads=1", "trainer.max_epochs=1"),
        *(
            "schedule=constant",
            "determinism.env.OMP_DYNAMIC=TRUE",
            f"hydra.run.dir={run}",
        ),
    )
    assert done.returncode == 0, done.stderr
    assert command("scripts/evaluate.py", str(run)).returncode == 0
    assert (
        command("scripts/resume.py", str(run), "trainer.max_epochs=2").returncode == 0
    )
    verified = command("scripts/verify.py", str(run), "--keep", str(kept))
    assert verified.stdout.startswith("REPRODUCED"), verified.stderr
    assert not mark.is_own(kept)
    advice = "--trust determinism.env.OMP_DYNAMIC"
    assert advice in refusal(command("scripts/evaluate.py", str(kept)))
    with (run / "config.yaml").open("a") as file:
        file.write("# edited\n")
    assert advice in refusal(command("scripts/evaluate.py", str(run)))


def test_a_run_started_here_has_the_mark(tmp_path: Path) -> None:
    assert mark.is_own(trained(tmp_path / "run"))
