"""The model of a run from its folder alone: without data, initial weights, or today's
code."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import seedbed
from seedbed import weights
from seedbed.errors import InputError
from tests.running import ENGINE, QUICK, ROOT, command, refusal

MODEL = """
import torch
from torch import nn
{imports}
TABLE = torch.rand(8) if {draws} else torch.ones(8)

class Net(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.register_buffer("unsaved", TABLE.clone(), persistent=False)
        self.layer = nn.LazyLinear(outputs)

    def forward(self, images):
        return self.layer(images.flatten(1) + {shift} + 0 * self.unsaved.sum())
"""
NET = "_target_: {module}.Net\noutputs: ${{data.outputs}}\n"
LOADED = """
_target_: seedbed.weights.Loaded
file: {file}
model: {{_target_: {module}.Net, outputs: 4}}
"""
PROGRAM = """
import sys, torch, seedbed, warnings
warnings.simplefilter("error", RuntimeWarning)
for run in sys.argv[2:]:
    try:
        model = seedbed.load(run, code=sys.argv[1])
        print(type(model).__module__, model(torch.ones(1, 1, 8, 8)).sum().item())
    except seedbed.errors.InputError as error:
        print("refused:", error)
"""


def source(shift: int = 0, draws: bool = False, imports: str = "") -> str:
    return MODEL.format(shift=shift, draws=draws, imports=imports)


class Project:
    """A copy of the tests' project, with a model in `src/nets.py`."""

    def __init__(self, folder: Path) -> None:
        self.root = Path(shutil.copytree(ROOT, folder, symlinks=False))
        self.variables = {"SEEDBED_PROJECT": str(self.root)}
        self.write("nets", source())

    def write(self, module: str, text: str, config: str = NET) -> None:
        (self.root / "src" / f"{module}.py").write_text(text)
        (self.root / "configs" / "model" / "net.yaml").write_text(
            config.format(module=module)
        )

    def train(self, name: str, *words: str) -> Path:
        run = self.root / "runs" / name
        limits = ("trainer.max_steps=2", "trainer.rehearse_resume=false", "model=net")
        words = (*QUICK, *limits, *words, f"hydra.run.dir='{run}'")
        done = command(str(self.root / "train.py"), *words, environment=self.variables)
        assert done.returncode == 0, done.stderr
        return run

    def load(
        self, *runs: Path, code: str = "here", folder: Path | None = None
    ) -> list[str]:
        """Load runs one after the other in a new process; return what it prints."""
        path = os.pathsep.join((str(self.root / "src"), str(ENGINE)))
        variables = {**os.environ, **self.variables, "PYTHONPATH": path}
        words = (sys.executable, "-c", PROGRAM, code, *map(str, runs))
        how: Any = {"cwd": folder or self.root, "env": variables, "text": True}
        done = subprocess.run(words, capture_output=True, check=True, **how)
        return done.stdout.splitlines()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project(tmp_path_factory.mktemp("load") / "project [x]")


@pytest.mark.long
def test_a_folder_or_zip_is_enough(project: Project, tmp_path: Path) -> None:
    """Without the data and the initial weights, from any folder; a lazy layer has its
    shape.

    The project's folder has a name that would be a pattern.
    """
    first = project.train("first")
    file = tmp_path / "initial.pt"
    shutil.copy(first / "checkpoints/best.pt", file)
    project.write("nets", source(), LOADED.replace("{file}", str(file)))
    run = project.train("loaded", "seed=1")
    file.unlink()
    shutil.move(project.root / "src" / "tiny" / "data.py", tmp_path)
    try:
        folder = tmp_path / "elsewhere"
        folder.mkdir()
        [line] = project.load(run, folder=folder)
        archive = shutil.make_archive(str(tmp_path / "run"), "zip", run)
        assert project.load(Path(archive), folder=folder) == [line]
    finally:
        shutil.move(tmp_path / "data.py", project.root / "src" / "tiny")
    project.write("nets", source())


@pytest.mark.long
def test_the_code_of_the_record_outlives_a_refactoring(project: Project) -> None:
    """Negative controls: without it, the run is refused; code of two versions do not
    mix."""
    project.write("nets", source(shift=1))
    run = project.train("before")
    [before] = project.load(run)
    (project.root / "src" / "nets.py").unlink()
    project.write("renamed", source(shift=2))
    other = project.train("after")
    assert project.load(run, code="record") == [before]
    assert "refused" in project.load(run)[0]
    words = ("scripts/evaluate.py", str(run))
    assert refusal(command(*words, environment=project.variables))
    done = command(*words, "--restore-code", environment=project.variables)
    assert done.returncode == 0, done.stderr
    archive = shutil.make_archive(str(run), "zip", run)
    words = ("scripts/evaluate.py", archive, "--restore-code")
    done = command(*words, environment=project.variables)
    assert done.returncode == 0, done.stderr
    project.write("renamed", source(shift=3))
    [first, second] = project.load(other, project.train("later"), code="record")
    assert first.startswith("renamed")
    assert "uses another version of renamed; load this run in a new process" in second
    project.write("nets", source())


@pytest.mark.long
def test_runs_with_other_draws_at_import_are_not_mixed(project: Project) -> None:
    """Negative control: runs of one seed, and modules that draw nothing, are loaded
    together."""
    project.write("drawing", source(draws=True))
    runs = [
        project.train(f"seed {seed} {number}", f"seed={seed}") for seed, number in SEEDS
    ]
    first, same, other = project.load(*runs)
    assert first.startswith("drawing")
    assert same.startswith("drawing")
    assert other.startswith("refused:")
    assert "drawing drew random numbers when it was imported, by seeds.data=0" in other
    project.write("nets", source())
    assert "refused" not in "".join(
        project.load(project.train("a"), project.train("b", "seed=1"))
    )


SEEDS = ((0, 1), (0, 2), (1, 1))


@pytest.mark.long
def test_recorded_precision_is_offered(project: Project) -> None:
    """The outputs are those of an evaluation in bfloat16. Negative control: float32."""
    run = project.train("half", "trainer.precision=bfloat16")
    program = (
        "import sys, torch, seedbed\n"
        "for how in ('float32', 'recorded'):\n"
        "    model = seedbed.load(sys.argv[1], precision=how)\n"
        "    print(model(torch.linspace(0, 1, 64).view(1, 1, 8, 8)).dtype)\n"
    )
    variables = {
        **os.environ,
        **project.variables,
        "PYTHONPATH": str(project.root / "src"),
    }
    words = (sys.executable, "-c", program, str(run))
    done = subprocess.run(
        words, env=variables, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["torch.float32", "torch.bfloat16"]
    done = command("scripts/evaluate.py", str(run), environment=project.variables)
    assert "precision bfloat16" in done.stdout
    with pytest.raises(InputError, match="expected code='here' or 'record'"):
        seedbed.load(run, code="elsewhere")


CONNECTING = """
import contextlib
import socket
import threading
from torch import nn

class Net(nn.Module):
    def __init__(self, outputs, port):
        super().__init__()
        self.layer = nn.Linear(64, outputs)
        thread = threading.Thread(target=self.try_to_connect, args=[port])
        thread.start()
        thread.join()
        self.connect(port)

    def connect(self, port):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError as error:
            raise RuntimeError("no weights there") from error

    def try_to_connect(self, port):
        with contextlib.suppress(RuntimeError):
            self.connect(port)

    def forward(self, images):
        return self.layer(images.flatten(1))
"""


@pytest.mark.long
def test_a_record_from_elsewhere_opens_no_address(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do threads that its model starts. Negative controls: one's own run, and
    `online`."""
    monkeypatch.setenv("SEEDBED_PROJECT", str(project.root))
    monkeypatch.syspath_prepend(str(project.root / "src"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)

        def connections() -> int:
            count = 0
            while True:
                try:
                    server.accept()[0].close()
                except BlockingIOError:
                    return count
                count += 1

        config = f"{NET}port: {server.getsockname()[1]}\n"
        project.write("connecting", CONNECTING, config)
        own = project.train("connecting")
        connections()
        foreign = Path(shutil.copytree(own, tmp_path / "foreign"))
        (foreign / "config.mark").unlink()
        with pytest.raises(
            InputError, match=r"^model: .*needs no address.* online=True"
        ):
            seedbed.load(foreign)
        with pytest.raises(InputError, match=r"^split: "):
            seedbed.data(foreign, "none")
        words = ("scripts/evaluate.py", str(foreign))
        assert "--online" in refusal(command(*words, environment=project.variables))
        assert connections() == 0
        seedbed.load(foreign, online=True)
        assert connections() == 2
        seedbed.load(own)
        assert connections() == 2
        for more in ((str(own),), (str(foreign), "--online")):
            done = command("scripts/evaluate.py", *more, environment=project.variables)
            assert done.returncode == 0, done.stderr
            assert connections() == 2
    project.write("nets", source())


FORMS: dict[str, Any] = {
    "alone": lambda state: state,
    "state_dict": lambda state: {"state_dict": state, "epoch": 3},
    "model": lambda state: {"model": state, "optimizer": {"lr": 0.1}},
    "parallel": lambda state: {
        "model": {f"module.{name}": x for name, x in state.items()}
    },
    "lightning": lambda state: {
        "state_dict": {
            **{f"module.{n}": x for n, x in state.items()},
            "criterion.w": state["bias"],
        }
    },
}


@pytest.mark.parametrize("form", FORMS)
def test_weights_are_read_in_the_forms_of_other_programs(
    form: str, tmp_path: Path
) -> None:
    """Negative control: a dictionary without them, and a prefix that no name has, are
    refused."""
    saved = nn.Linear(3, 2)
    model = nn.Linear(3, 2)
    path = str(tmp_path / "weights.pt")
    torch.save(FORMS[form](saved.state_dict()), path)
    prefix = "module." if form in ("parallel", "lightning") else ""
    loaded: Any = weights.Loaded(model, path, prefix=prefix)
    assert torch.equal(loaded.weight, saved.weight)
    with pytest.raises(
        InputError, match=r"^model\.prefix: expected the beginning of names in"
    ):
        weights.Loaded(model, path, prefix="encoder.")
    torch.save({"epoch": 3, "model": "resnet"}, path)
    with pytest.raises(InputError, match=r"^model\.file: .* it holds epoch, model"):
        weights.Loaded(model, path)


def test_safetensors_are_read_or_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package is optional."""
    path = tmp_path / "weights.safetensors"
    saved = {
        name: torch.full_like(x, 0.5)
        for name, x in nn.Linear(3, 2).state_dict().items()
    }
    monkeypatch.setattr(weights, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="needs a package: pip install safetensors"):
        weights.Loaded(nn.Linear(3, 2), str(path))
    monkeypatch.undo()
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file(saved, path)
    loaded: Any = weights.Loaded(nn.Linear(3, 2), str(path))
    assert torch.equal(loaded.bias, torch.full((2,), 0.5))


def test_a_checkpoint_takes_the_place_of_the_file(tmp_path: Path) -> None:
    """Negative control: otherwise the file is read."""
    model = nn.Linear(3, 2)
    with weights.of_a_checkpoint():
        assert weights.Loaded(model, str(tmp_path / "missing.pt")) is model
    with pytest.raises(InputError, match=r"^model\.file: "):
        weights.Loaded(model, str(tmp_path / "missing.pt"))
