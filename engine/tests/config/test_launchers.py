"""Laws of launchers and of the search, with the real packages of requirements-cluster.txt."""

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from seedbed import record
from seedbed.config import launchers
from seedbed.config.launchers import INSTALL
from seedbed.errors import InputError
from tests.running import QUICK, command, refusal, trained

SETTINGS = (*QUICK, "trainer.max_steps=3")
# A Ray without tokens, which it would keep in the home folder, and that does not call home.
RAY = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
CASES = {
    "submitit_local": ("submitit", ("hydra/launcher=submitit_local",)),
    "ray": ("ray", ("hydra/launcher=ray", "+hydra.launcher.ray.init.include_dashboard=false")),
}


def needs(package: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"needs {package}: {INSTALL}")


def sweep(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    words = ("--multirun", f"hydra.sweep.dir={folder}", *SETTINGS, *words)
    return command("train.py", *words, environment=RAY)


def fingerprint_rows(run: Path) -> str:
    return (run / "fingerprints.csv").read_text()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run that no launcher started."""
    return trained(tmp_path_factory.mktemp("plain") / "run", "trainer.max_steps=3")


@pytest.fixture
def ray_cluster() -> Iterator[str]:
    """Give the address of a Ray cluster of one machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = Path(tempfile.mkdtemp(prefix="ray"))  # short: Ray's sockets lie in it
    ray = Path(sys.executable).with_name("ray")
    words = ["start", "--head", "--block", f"--port={port}", "--num-cpus=2"]
    process = subprocess.Popen(
        [str(ray), *words, "--include-dashboard=false"],
        env=os.environ | RAY | {"RAY_TMPDIR": str(place)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for_port(port)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
        shutil.rmtree(place, ignore_errors=True)


def wait_for_port(port: int) -> None:
    for _ in range(300):
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError("Ray did not start")


@pytest.mark.parametrize(
    "launcher", [pytest.param(name, marks=needs(package)) for name, (package, _) in CASES.items()]
)
def test_jobs_of_a_launcher_have_the_bits_of_a_plain_run(
    launcher: str, plain: Path, tmp_path: Path
) -> None:
    """Its threads are those of the configuration, too; negative control: the job with another seed
    differs."""
    done = sweep(tmp_path, "seed=0,1", *CASES[launcher][1])
    assert done.returncode == 0, done.stderr
    assert "| mean" in done.stdout
    assert fingerprint_rows(tmp_path / "0_seed=0") == fingerprint_rows(plain)
    assert fingerprint_rows(tmp_path / "1_seed=1") != fingerprint_rows(plain)
    for run in ("0_seed=0", "1_seed=1"):
        assert record.read_json(tmp_path / run / "environment.json")["cpu"]["threads"] == 1


@needs("ray")
def test_jobs_on_a_ray_that_is_there_have_the_bits_of_a_plain_run(
    ray_cluster: str, plain: Path, tmp_path: Path
) -> None:
    """It is found by its address."""
    address = f"hydra.launcher.ray.init.address={ray_cluster}"
    done = sweep(tmp_path, "seed=0,1", "hydra/launcher=ray", address)
    assert done.returncode == 0, done.stderr
    assert fingerprint_rows(tmp_path / "0_seed=0") == fingerprint_rows(plain)


@needs("optuna")
def test_a_search_minimises_the_objective_and_goes_on_where_it_was(tmp_path: Path) -> None:
    """Every trial is a run with its record; a search that lost its last one proposes it again."""
    search = ("hydra/sweeper=optuna", "hydra.sweeper.n_jobs=1", "hydra.sweeper.n_trials=2")
    words = (*search, "hydra.sweeper.sampler.seed=0", "optimizer.lr=interval(0.001,0.1)")
    done = sweep(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    runs = sorted(path for path in tmp_path.iterdir() if record.is_run(path))
    values = [record.read_summary(run)["objective"]["value"] for run in runs]
    best = yaml.safe_load((tmp_path / "optimization_results.yaml").read_text())
    assert len(set(values)) == 2
    assert best["best_value"] == min(values)
    assert f"best: {runs[values.index(min(values))].name.partition('_')[2]}" in done.stdout

    before = fingerprint_rows(runs[1])
    shutil.rmtree(runs[1])
    done = command("scripts/resume.py", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert fingerprint_rows(runs[1]) == before


@needs("optuna")
def test_a_failed_trial_does_not_end_a_search(tmp_path: Path) -> None:
    """It is named in the report and in the exit status."""
    words = ("hydra/sweeper=optuna", "hydra/sweeper/sampler=grid", "data.batch_size=64,4001")
    done = sweep(tmp_path, *words)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "1 of 2 runs do not count" in done.stdout


@pytest.mark.parametrize("word", ["launcher=submitit_local", "launcher=ray", "sweeper=optuna"])
def test_what_is_not_installed_is_refused_with_the_line_that_installs_it(word: str) -> None:
    """Exit status 2."""
    package = {"submitit_local": "submitit"}.get(name := word.partition("=")[2], name)
    if importlib.util.find_spec(package) is not None:
        pytest.skip(f"{package} is installed")
    line = refusal(command("train.py", "-m", f"hydra/{word}"))
    assert line.endswith(f"got {name}; install it: {INSTALL}")


def test_an_unknown_launcher_is_refused_with_those_that_there_are() -> None:
    """And with the nearest."""
    line = refusal(command("train.py", "-m", "hydra/launcher=joblip"))
    assert line.startswith("hydra/launcher: expected one of basic, joblib")
    assert line.endswith("got joblip; did you mean hydra/launcher=joblib")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("hydra/launcher=joblib", "hydra.launcher.n_jobs=0"),
         "hydra.launcher.n_jobs: expected an integer other than 0"),
        (("hydra.sweeper.max_batch_size=0",),
         "hydra.sweeper.max_batch_size: expected an integer >= 1 or null, got 0"),
        pytest.param(("hydra/sweeper=optuna", "hydra.sweeper.n_jobs=0"),
                     "hydra.sweeper.n_jobs: expected an integer >= 1, got 0",
                     marks=needs("optuna")),
    ],
)  # fmt: skip
def test_counts_that_cannot_be_are_refused(
    words: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    """Exit status 2, before a job starts."""
    done = sweep(tmp_path / "sweep", *words)
    assert refusal(done).startswith(message)
    assert not (tmp_path / "sweep").exists()


def test_only_the_end_of_a_grid_ends_a_search_in_peace() -> None:
    """Hydra lets Optuna's error of it through when the last trial failed; negative control: any
    other error."""
    text = "`Study.stop` is supposed to be invoked inside an objective function or a callback."
    assert launchers.ends_a_search(RuntimeError(text))
    assert not launchers.ends_a_search(RuntimeError("other"))
    assert not launchers.ends_a_search(ValueError(text))


def test_an_address_that_no_machine_can_have_is_refused() -> None:
    """A part of a name has 63 letters at most; Python cannot even ask for a longer one."""
    init = OmegaConf.create({"address": f"{'a' * 64}.example:6379"})
    launcher = {"_target_": "x.RayLauncher", "ray": {"init": init}}
    with pytest.raises(InputError, match="expected a Ray cluster that answers"):
        launchers.prepare(OmegaConf.create({"launcher": launcher}))


@needs("submitit")
@pytest.mark.skipif(shutil.which("sbatch") is not None, reason="this machine has Slurm's commands")
def test_slurm_without_its_commands_is_refused(tmp_path: Path) -> None:
    """Exit status 2; it says what to use on a machine of one's own."""
    line = refusal(sweep(tmp_path / "sweep", "hydra/launcher=submitit_slurm"))
    assert "expected Slurm's commands, got no sbatch" in line
    assert "hydra/launcher=submitit_local" in line


@needs("ray")
def test_a_ray_address_where_nobody_is_is_refused(tmp_path: Path) -> None:
    """Exit status 2."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{free.getsockname()[1]}"
        line = refusal(ray_at(address, tmp_path))
    assert f"expected a Ray cluster that answers, got Connection refused from {address}" in line


def ray_at(address: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    words = ("-m", f"hydra.sweep.dir={folder / 'sweep'}", "hydra/launcher=ray")
    word = f"hydra.launcher.ray.init.address={address}"
    return command("train.py", *words, word, timeout_seconds=30)
