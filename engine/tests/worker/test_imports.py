"""environment.json names the files that a training process imported, as they were then."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from seedbed import project, record
from seedbed.worker import imports
from tests import pages
from tests.running import ROOT


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    root = tmp_path / "checkout"
    (root / "src").mkdir(parents=True)
    monkeypatch.setattr(project, "root", lambda: root)
    yield root
    for name in ("seen_first", "seen_later"):
        sys.modules.pop(name, None)


def import_file(root: Path, name: str, text: str) -> Path:
    path = root / "src" / f"{name}.py"
    path.write_text(text)
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__file__ = str(path)
    return path


def test_files_are_named_as_they_were_when_first_seen(checkout: Path, tmp_path: Path) -> None:
    """By git's ids; a module that comes later is added; nothing is written without need."""
    environment = {"git": {"commit": None}, "device": "cpu"}
    observer, path = imports.Imports(tmp_path, environment), tmp_path / "environment.json"
    first = import_file(checkout, "seen_first", "x = 1\n")
    words = ["git", "hash-object", "--no-filters", str(first)]
    blob = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    observer.note([])
    assert record.read_json(path) == {**environment, "imported_files": {"src/seen_first.py": blob}}

    first.write_text("x = 2\n")
    written = path.stat().st_ino
    observer.note([])
    observer.close(True)
    assert path.stat().st_ino == written
    import_file(checkout, "seen_later", "")
    observer.save()
    files = json.loads(path.read_text())["imported_files"]
    assert list(files) == ["src/seen_first.py", "src/seen_later.py"]
    assert files["src/seen_first.py"] == blob


def test_a_run_names_what_it_uses_and_nothing_else(quick_run: Path) -> None:
    """The model's file and the loop's; neither another model nor what starts or compares runs."""
    files = record.read_json(quick_run / "environment.json")["imported_files"]

    assert {"src/project/models/cnn.py", "engine/src/seedbed/training/loop.py"} <= files.keys()
    assert "src/project/models/recurrent.py" not in files
    assert not [
        path for path in files if path.startswith(("engine/src/seedbed/compare", "scripts"))
    ]
    words = ["git", "hash-object", "--no-filters", "src/project/models/cnn.py"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert files["src/project/models/cnn.py"] == done.stdout.strip()


@pytest.mark.long
def test_a_file_that_nobody_imports_does_not_keep_a_run_from_resuming(tmp_path: Path) -> None:
    """The next model, written while a run is stopped; the negative control edits its own model."""
    project = pages.copy_project(tmp_path / "project", {})
    pages.commit(project, "The clone")
    steps = ("trainer.max_steps=4", "trainer.checkpoint_every_steps=2", "determinism.threads=1")
    done = pages.run(project, "train.py", "hydra.run.dir=runs/a", *steps)
    assert done.returncode == 0, done.stderr
    model = project / "src/project/models/cnn.py"
    model.with_name("next.py").write_text("x = 1\n")
    for change, status in (("", 0), ("# else\n", 2)):
        model.write_text(model.read_text() + change)
        run = shutil.copytree(project / "runs/a", project / f"runs/{status}")
        summary = (run / "summary.json").read_text()
        (run / "summary.json").write_text(summary.replace('"finished"', '"interrupted"'))
        done = pages.run(project, "scripts/resume.py", str(run))
        assert done.returncode == status, done.stdout + done.stderr
        assert ("src/project/models/cnn.py" in done.stderr) == bool(status)
