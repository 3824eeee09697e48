"""The engine as `pip install git+...` installs it: it imports fast, and works anywhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from seedbed import project
from tests.running import TEMPLATE

# pip builds the package with setuptools, which it fetches from the package registry.
NO_GIT = not (TEMPLATE / ".git").exists()
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(NO_GIT, reason="installs a commit of this checkout"),
]

LOOP = """
import sys, torch, seedbed
from seedbed.loading import seeded_loader
data = torch.utils.data.TensorDataset(torch.arange(24.0)[:, None])
loader = seeded_loader(data, 4, seed=int(sys.argv[2]))
torch.manual_seed(0)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
with seedbed.Recorder(sys.argv[1], {"seed": int(sys.argv[2])}) as recorder:
    for step, (x,) in enumerate(loader, 1):
        loss = model(x).square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        recorder.step(step, loader.ids(step), x, loss, model, optimizer)
print(seedbed.__file__)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install this commit's engine by its git address into a folder of its own.

    torch and the other packages are those of this Python.
    """
    place = tmp_path_factory.mktemp("installed")
    address = f"seedbed @ git+file://localhost{TEMPLATE}#subdirectory=engine"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "--no-input"]
    install = [*pip, "install", "--no-deps", "--target", str(place), address]
    subprocess.run(install, check=True, timeout=300, cwd=place)
    return place


def run(site: Path, folder: Path, *words: str, status: int = 0) -> str:
    """Run Python in an empty folder, with the installed engine before the repository's."""
    variables = {**os.environ, "PYTHONPATH": str(site), "PYTHONSAFEPATH": "1"}
    del variables[project.PROJECT]  # that of the engine's tests
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    return done.stdout


def test_a_loop_is_recorded_and_compared_outside_the_repository(site: Path, tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    for name, seed in (("a", "0"), ("b", "0"), ("c", "1")):
        assert run(site, tmp_path, "loop.py", name, seed).startswith(str(site))
    words = (str(site / "bin" / "seedbed"), "compare", "a")
    assert "The same bits at every step compared (6)" in run(site, tmp_path, *words, "b")
    assert "diverge at step 1: sample ids" in run(site, tmp_path, *words, "c", status=1)
    assert "loop.py" in (tmp_path / "a/environment.json").read_text()  # no repository: by content


def test_the_presets_are_installed(site: Path, tmp_path: Path) -> None:
    """One is applied; the files are those of the checkout."""
    run(site, tmp_path, "-c", "import seedbed; seedbed.apply_preset('strict')")
    for file in (TEMPLATE / "configs" / "determinism").glob("*.yaml"):
        installed = site / "seedbed" / "determinism" / "presets" / file.name
        assert installed.read_bytes() == file.read_bytes()


def test_the_import_loads_neither_torch_nor_numpy(site: Path, tmp_path: Path) -> None:
    """And changes nothing: no thread, no variable, no signal handler."""
    code = """
import os, signal, sys, threading
def state():
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    return dict(os.environ), threading.active_count(), handlers
before = state()
import seedbed
assert state() == before
assert not {"numpy", "torch"} & set(sys.modules)
assert seedbed.loading.seeded_loader and seedbed.Recorder and seedbed.apply_preset
"""
    run(site, tmp_path, "-c", code)
