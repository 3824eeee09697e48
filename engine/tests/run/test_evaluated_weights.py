"""Methods that evaluate other weights than those that they train, such as averages."""

import copy
import json
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import seedbed
from seedbed import record
from seedbed.errors import InputError
from seedbed.methods import Supervised
from seedbed.run.run_logger import RunLogger
from seedbed.training import checkpoint, digests
from tests import tiny
from tests.made_up_runs import contents
from tests.pages import blocks
from tests.run.runs import begun, of_method, refused, resumed, trained, whole, work
from tests.running import TEMPLATE, command, train
from tests.tiny import FEATURES
from tests.training.test_checkpoint import Killed
from tests.ways import differences

pytestmark = pytest.mark.usefixtures("this_process_trains")
Optimizers = Mapping[str, Any]


def of_the_docs(text: str) -> dict[str, Any]:
    """Return the functions of the block of docs/methods.md that contains a text."""
    page = (TEMPLATE / "docs" / "methods.md").read_text()
    (block,) = (block for block in blocks(page, "python") if text in block)
    functions: dict[str, Any] = {}
    exec(block, functions)
    return {name: each for name, each in functions.items() if callable(each)}


Base: Any = type("Base", (Supervised,), of_the_docs("optimizer.train()"))
Recipe: Any = type("Recipe", (Supervised,), of_the_docs("averages[name].lerp_"))


class Free(Base):
    """Trains with a schedule-free optimizer, which keeps the averages."""


class Unswapped(Free):
    """Evaluates the weights that it trains. A negative control."""

    on_evaluation_start = Supervised.on_evaluation_start
    on_evaluation_end = Supervised.on_evaluation_end


class LeftInEval(Free):
    on_evaluation_end = Supervised.on_evaluation_end


class WithAverage(nn.Module):
    """A network with batch normalisation, evaluated by a moving average."""

    def __init__(self, library: bool) -> None:
        super().__init__()
        layers = nn.Linear(FEATURES, 16), nn.BatchNorm1d(16), nn.Linear(16, 3)
        self.net = nn.Sequential(*layers)
        self.average = copy.deepcopy(nn.Sequential(*layers))
        if library:
            average = get_ema_multi_avg_fn(0.95)
            self.average = AveragedModel(
                self.net, multi_avg_fn=average, use_buffers=True
            )
        self.average.requires_grad_(False)

    def forward(self, points: Tensor) -> Tensor:
        return (self.net if self.training else self.average)(points)  # type: ignore[no-any-return]


class ByLibrary(Supervised):
    def on_step_end(self, model: Any, step: int) -> None:
        model.average.update_parameters(model.net)


class Net(nn.Module):
    """A layer with batch normalisation, and buffers for the averages of both."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(FEATURES, 16), nn.BatchNorm1d(16), nn.Linear(16, 3)
        )
        for name, value in self.net.state_dict().items():
            self.register_buffer(name.replace(".", "_"), value.clone())

    def forward(self, points: Tensor) -> Tensor:
        return self.net(points)  # type: ignore[no-any-return]


class Moving(Supervised):
    """Evaluates moving averages, kept in buffers; leaves the restoring to the
    engine."""

    def on_step_end(self, model: Any, step: int) -> None:
        for name, value in model.net.state_dict().items():
            average = getattr(model, name.replace(".", "_"))
            (
                average.lerp_(value, 0.1)
                if value.is_floating_point()
                else average.copy_(value)
            )

    def on_evaluation_start(self, model: Any, optimizers: Optimizers) -> None:
        for name, value in model.net.state_dict().items():
            value.copy_(getattr(model, name.replace(".", "_")))


of = partial(of_method, module=__name__)
OPTIMIZER = tiny.replaced("optimizer", "tests.odd_optimizers.ScheduleFree", lr=0.2)
SHORTER = ("trainer.max_steps=27", "schedule=constant")  # 6 steps an epoch
FREE, UNSWAPPED = (of(name, *OPTIMIZER, *SHORTER) for name in ("Free", "Unswapped"))
MOVING = of("Moving", *SHORTER, model={"name": "net", "_target_": f"{__name__}.Net"})


def state(run: Path, name: str = "last.pt") -> dict[str, Any]:
    return checkpoint.load(run / "checkpoints" / name)


def averages(run: Path) -> dict[str, Tensor]:
    """Return the averages of last.pt, computed from what it holds."""
    last = state(run)
    if "0_weight" in last["model"]:
        named = last["model"]
        return {
            n: named[n[4:].replace(".", "_")] for n in named if n.startswith("net.")
        }
    kept = last["optimizer"]
    zs = [kept["state"][number]["z"] for number in kept["param_groups"][0]["params"]]
    pairs = zip(last["model"].items(), zs, strict=True)
    return {name: y.lerp(z, 1 - 1 / 0.9) for (name, y), z in pairs}


@pytest.mark.parametrize(
    "words", [FREE, MOVING], ids=["schedule-free", "moving averages"]
)
class TestSwappedWeights:
    def test_how_often_a_run_validates_changes_no_bit_of_training(
        self, words: tuple[str, ...]
    ) -> None:
        often, rarely = (
            whole(*words, f"trainer.validate_every_epochs={n}") for n in (1, 3)
        )
        assert record.read_fingerprints(often) == record.read_fingerprints(rarely)
        assert not {"last.pt: model", "last.pt: optimizer"} & {
            *differences(often, rarely)
        }

    @pytest.mark.long
    def test_a_run_stopped_anywhere_has_the_same_bits(
        self, words: tuple[str, ...], tmp_path: Path
    ) -> None:
        """Also within a validation, where other weights are swapped in, and in the
        test."""
        for check in (9, 10, 11, 12, 24, 39):
            resumed(tmp_path / str(check), whole(*words), check, *words)

    @pytest.mark.long
    def test_values_are_those_of_the_averages(self, words: tuple[str, ...]) -> None:
        """In the record, by evaluate.py and by load; best.pt holds what was
        evaluated."""
        run = whole(*words, "trainer.monitor=loss", "trainer.mode=max")  # the first
        summary = record.read_summary(run)
        assert summary["tested_step"] != summary["steps"], (
            "negative control: last is not best"
        )
        assert state(run, "best.pt")["swapped"] is True
        for name, section in (("best", "metrics"), ("last", "last_metrics")):
            # This process has imported more files, which tests may have changed since.
            words = (
                "scripts/evaluate.py",
                str(run),
                "--checkpoint",
                name,
                "--allow-changed",
            )
            done = command(*words, "--json", "--trust", "tests")
            assert done.returncode == 0, done.stderr
            value = json.loads(done.stdout)["test_loss"]
            assert value == summary[section]["test_loss"]
        words = ("scripts/evaluate.py", str(run), "--split", "validation", "--json")
        value = json.loads(command(*words, "--trust", "tests").stdout)[
            "validation_loss"
        ]
        assert value == state(run, "best.pt")["metric"]
        model = seedbed.load(run, "last", trust=["tests"])
        for key, value in averages(run).items():
            assert torch.equal(model.state_dict()[key], value), key
            if value.is_floating_point():
                assert not torch.equal(state(run)["model"][key], value), (
                    "negative control"
                )


@pytest.mark.parametrize("library", [False, True])
def test_the_averages_of_the_docs_have_buffers(library: bool, tmp_path: Path) -> None:
    """Negative control: at first, the average does not have the statistics."""
    model: Any = WithAverage(library)
    method: Any = ByLibrary() if library else Recipe()
    model.net[1](torch.randn(32, 16) + 7)
    mean = model.net[1].running_mean
    inner = model.average.module if library else model.average
    assert not torch.allclose(inner[1].running_mean, mean)
    with torch.no_grad():
        for step in range(400):
            method.on_step_end(model, step)
    for name, value in model.net.state_dict().items():
        torch.testing.assert_close(inner.state_dict()[name], value)
    target = f"{__name__}.WithAverage"
    spec = {"name": "net", "_target_": target, "library": library}
    name = "ByLibrary" if library else "Recipe"
    words = of(name, "trainer.max_steps=60", "schedule=constant", model=spec)
    resumed(tmp_path / "run", whole(*words), 20, *words)
    assert record.read_summary(tmp_path / "run")["metrics"]["validation_accuracy"] > 0.6


@pytest.mark.long
def test_two_processes_have_the_bits_of_one(tmp_path: Path) -> None:
    """Each swaps the weights, and lowers the learning rate on the same plateau."""
    words = (*FREE, "schedule=plateau", "schedule.patience=0", "trainer.shards=2")
    one = tmp_path / "one"
    two = tmp_path / "two"
    assert (
        train(one, *words, "trainer.monitor=loss", "trainer.mode=max").returncode == 0
    )
    words = (*words, "trainer.processes=2")
    assert (
        train(two, *words, "trainer.monitor=loss", "trainer.mode=max").returncode == 0
    )
    assert differences(one, two) == []
    assert state(one)["optimizer"]["param_groups"][0]["plateau_factor"] < 1


def test_without_the_hooks_the_weights_that_are_trained_are_evaluated() -> None:
    """Negative control of the tests above: the same steps, other values."""
    swapped = whole(*FREE)
    plain = whole(*UNSWAPPED)
    assert record.read_fingerprints(swapped) == record.read_fingerprints(plain)
    values = [
        record.read_summary(run)["metrics"]["validation_loss"]
        for run in (swapped, plain)
    ]
    assert values[0] != values[1]
    assert not state(plain, "best.pt")["swapped"]


def test_an_optimizer_that_is_not_swapped_back_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(tmp_path / "run", capsys, *of("LeftInEval", *OPTIMIZER, *SHORTER))
    assert line.startswith(
        "method: expected on_evaluation_end to undo what on_evaluation_start"
    )


def test_a_run_killed_before_best_pt_writes_the_averages_when_it_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (*FREE, "trainer.monitor=loss")
    reference = trained(tmp_path / "whole", *words)
    step = record.read_summary(reference)["best_step"]
    original = checkpoint.save

    def save(state: dict[str, Any], path: Path, **options: bool) -> None:
        if path.name == checkpoint.BEST and state["step"] == step:
            raise Killed
        original(state, path, **options)

    folder = begun(tmp_path / "run", *words)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", save)
        with pytest.raises(Killed):
            work(folder)
    assert work(folder) == 0
    assert differences(reference, folder) == []


# The best weights are not the last ones.
EARLY = ("trainer.monitor=loss", "trainer.mode=max")


def with_other_best_weights(run: Path) -> None:
    """Give best.pt of a run the weights of last.pt, and their SHA-256."""
    best = state(run, "best.pt")
    assert best["step"] < state(run)["progress"]["step"]
    best["model"] = state(run)["model"]
    best["weights_sha256"] = digests.of_weights(best)
    checkpoint.save(best, run / "checkpoints" / "best.pt")


@pytest.mark.parametrize(
    "words", [UNSWAPPED, FREE, MOVING], ids=["trained", "free", "moving"]
)
def test_other_best_weights_in_a_killed_run_are_refused(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No summary has their SHA-256: that in last.pt counts. The record stays as it was.

    Negative controls: the run's own best weights; a last.pt of an earlier version,
    without it.
    """
    run, old, own = (tmp_path / name for name in ("run", "old", "own"))
    begun(run, *words, *EARLY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunLogger, "log_test", Mock(side_effect=Killed))
        with pytest.raises(Killed):
            work(run)
    assert record.read_summary(run).get("weights_sha256") is None
    best = state(run, "best.pt")
    last = state(run)
    assert (
        best["weights_sha256"]
        == last["progress"]["best_sha256"]
        == digests.of_weights(best)
    )
    assert best["swapped"] == (words != UNSWAPPED)
    shutil.copytree(run, own)
    with_other_best_weights(run)
    shutil.copytree(run, old)
    before = contents(run)
    assert work(run) == 2
    expected = (
        f"best.pt: expected the weights of step {best['step']} whose SHA-256 is in"
        " last.pt"
    )
    assert expected in capsys.readouterr().err
    after = contents(run)
    assert {name for name in before if before[name] != after[name]} == set()
    assert work(own) == 0
    assert differences(whole(*words, *EARLY), own) == []
    del last["progress"]["best_sha256"]
    checkpoint.save(last, old / "checkpoints" / "last.pt", keep_previous=False)
    assert work(old) == 0


@pytest.mark.parametrize("words", [FREE, MOVING], ids=["free", "moving"])
def test_other_best_weights_are_refused_though_they_are_not_those_of_training(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    """No fingerprint has them. Negative control: the run's own."""
    run = Path(shutil.copytree(whole(*words, *EARLY), tmp_path / "run"))
    seedbed.load(run, trust=[__name__, "tests"])
    with_other_best_weights(run)
    with pytest.raises(
        InputError, match=r"best\.pt: expected the weights of step .* SHA-256"
    ):
        seedbed.load(run, trust=[__name__, "tests"])
