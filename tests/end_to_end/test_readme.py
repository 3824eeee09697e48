"""Every command in the README is run, as it stands there, on shorter runs."""

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.test_bad_input import wait_for_rows
from tests.running import QUICK, ROOT

README = (ROOT / "README.md").read_text()
MAKE_TARGETS = {"make train", "make test"}  # .ci/run runs them; test-all has the tests of test


def commands() -> list[str]:
    blocks = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    lines = [line.split("#")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that looks like a clone, so that runs do not land in the checkout."""
    folder = tmp_path_factory.mktemp("clone")
    for name in ("train.py", "scripts", "configs"):
        (folder / name).symlink_to(ROOT / name)
    run(folder, "python train.py seed=1 hydra.run.dir=runs/c")
    run(folder, "python train.py -m seed=0,1 hydra.sweep.dir=sweeps/a")
    return folder


def run(clone: Path, line: str) -> "subprocess.CompletedProcess[str]":
    words = [sys.executable, *shlex.split(line)[1:]]
    if "train.py" in line:
        words += ["--cfg", "job"] if "mnist_cnn" in line else QUICK  # the former would download
    return subprocess.run(words, cwd=clone, capture_output=True, text=True, check=False)


def interrupt_a_run(clone: Path, folder: str) -> None:
    words = [sys.executable, "train.py", *QUICK, "trainer.max_steps=300", f"hydra.run.dir={folder}"]
    process = subprocess.Popen(words, cwd=clone, stdout=subprocess.DEVNULL)
    wait_for_rows(clone / folder / "metrics.csv", 3)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 143


def test_the_readme_is_short() -> None:
    """It is a first screen and a map, no manual."""
    assert len(README.splitlines()) < 170


@pytest.mark.long
@pytest.mark.parametrize("line", [c for c in commands() if c not in MAKE_TARGETS])
def test_every_command_of_the_readme_works(clone: Path, line: str) -> None:
    """A README that was not tried is a promise that is not kept."""
    if "resume.py" in line:
        interrupt_a_run(clone, "interrupted")
        line = line.replace("runs/k", "interrupted")
    for name in ("a", "b"):  # made by a line above, maybe in another test process
        made = "train.py" in line or (clone / "runs" / name).exists()
        if f"runs/{name}" in line and not made:
            assert run(clone, f"python train.py seed=0 hydra.run.dir=runs/{name}").returncode == 0
    done = run(clone, line)
    expected = 1 if "runs/c" in line else 0  # another seed: the answer is that they differ
    assert done.returncode == expected, (done.stdout[-500:], done.stderr[-500:])


def test_every_script_of_the_readme_exists_and_helps() -> None:
    """-h shows usage and an example."""
    scripts = set(re.findall(r"python (scripts/\w+\.py)", README))
    assert len(scripts) >= 6
    for script in scripts:
        done = subprocess.run(
            [sys.executable, str(ROOT / script), "-h"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0
        assert "usage:" in done.stdout
        assert "example" in done.stdout


def test_every_link_and_file_of_the_readme_exists() -> None:
    """Links to files of the repository lead somewhere."""
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("http") or (ROOT / target).exists(), target
