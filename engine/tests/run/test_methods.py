"""Methods and callbacks: the promises of supervised training hold for every method."""

import csv
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.image import imread
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as run_again

from seedbed import record
from seedbed.assemble import sources
from seedbed.methods import Callback, Run, Seen, Supervised
from seedbed.pipeline.positions import Position
from seedbed.pipeline.source import Batch
from seedbed.training import checkpoint
from tests import tiny
from tests.run.runs import (
    METHODS,
    StopAt,
    begun,
    of_method,
    refused,
    resumed,
    trained,
    whole,
    work,
)
from tests.running import typed
from tests.ways import differences

pytestmark = pytest.mark.usefixtures("this_process_trains")

VAE = of_method("VAE", "~data.task")  # it needs none
GAN, TEACHER, TUNING, TOKENS = (
    of_method(name) for name in ("WassersteinGAN", "Teacher", "FineTuning", "Tokens")
)
NORMS = f"+callbacks.norms._target_={METHODS}.Norms"
BFLOAT16 = ("trainer.precision=bfloat16", "trainer.max_steps=6")


def optimized(target: str, **arguments: Any) -> tuple[str, ...]:
    """Return a command line that trains with another optimizer."""
    return (
        *TOKENS,
        *tiny.replaced("optimizer", target, lr=0.1, **arguments),
        "schedule=constant",
    )


LBFGS = optimized("torch.optim.LBFGS", line_search_fn="strong_wolfe")
SAM, UNMOVED = (optimized("tests.odd_optimizers.SAM", rho=rho) for rho in (0.5, 0))
SAWTOOTH = (*TUNING, *tiny.replaced("schedule", f"{METHODS}.Sawtooth", period=4))
COMPILED = (*VAE, "trainer.compile=true", "trainer.max_steps=8")
# It would time its kernels, and take the fastest ones.
AUTOTUNED = (*COMPILED, "trainer.compile=max-autotune")
CASES: dict[str, tuple[str, ...]] = {
    "teacher": TEACHER,
    "VAE in bfloat16": (*VAE, *BFLOAT16),
    "GAN in shards": (*GAN, "trainer.shards=2", "trainer.max_steps=8"),
    "LBFGS, which repeats its passes": LBFGS,
    "a schedule of groups": SAWTOOTH,
    "a callback of a GAN": (*GAN, NORMS),
}


@pytest.mark.parametrize(
    "words",
    [
        *CASES.values(),
        pytest.param(COMPILED, marks=pytest.mark.long),
        pytest.param(AUTOTUNED, marks=pytest.mark.long),
    ],
    ids=[*CASES, "compiled", "compiled by max-autotune"],
)
def test_a_run_stopped_and_resumed_ends_with_the_same_bits(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    resumed(tmp_path / "run", whole(*words), 6, *words)


def rows(folder: Path, phase: str) -> list[dict[str, str]]:
    return [row for row in record.read_metrics(folder) if row["phase"] == phase]


def column(folder: Path, name: str, phase: str = "train") -> list[str]:
    return [row[name] for row in rows(folder, phase)]


def stages(folder: Path, name: str) -> list[str]:
    return [row[name] for row in record.read_fingerprints(folder)]


def weights(folder: Path, name: str = "last.pt") -> dict[str, Tensor]:
    return checkpoint.load(folder / "checkpoints" / name)["model"]  # type: ignore[no-any-return]


class TestWhatIsLogged:
    def test_each_part_of_a_loss_is_a_column(self) -> None:
        """In training and evaluations, the loss is the sum of its parts; best.pt
        follows it."""
        run = whole(*VAE)
        for phase in ("train", "validation", "test"):
            for row in rows(run, phase):
                parts = float(row["reconstruction"]) + float(row["kl"])
                assert float(row["loss"]) == pytest.approx(parts)
                assert "metric" not in row
        summary = record.read_summary(run)
        assert (summary["metric_name"], summary["task"]) == ("loss", None)
        best = min(column(run, "loss", "validation"), key=float)
        assert summary["metrics"]["validation_loss"] == float(best)
        assert not (run / "test_predictions.csv").exists()

    def test_each_optimizer_has_its_loss_and_learning_rate(self) -> None:
        """The cells of an optimizer are empty in steps that do not update it."""
        run = whole(*GAN)
        assert [bool(cell) for cell in column(run, "generator_loss")] == 7 * [
            True,
            False,
        ]
        assert all(column(run, "critic_loss"))
        assert column(run, "loss")[0] == column(run, "generator_loss")[0], (
            "of the last update"
        )
        rates = [
            column(run, f"learning_rate_{name}") for name in ("critic", "generator")
        ]
        ratios = {round(float(a) / float(b), 6) for a, b in zip(*rates, strict=True)}
        assert ratios == {round(0.01 / 0.006, 6)}

    def test_a_summary_says_who_computes_the_values_of_evaluations(self) -> None:
        """A method with an evaluation of its own, or the task of one that changes
        training alone; reports ask for it."""
        for words, by in ((VAE, "method"), (TEACHER, "method"), (TUNING, "task")):
            assert record.read_summary(whole(*words))["evaluated_by"] == by

    def test_monitor_and_mode_choose_what_best_pt_follows(self) -> None:
        """No row of training or validation depends on it. Negative control: another
        seed."""
        run = whole(*VAE, "trainer.monitor=validation_kl", "trainer.mode=max")
        best = checkpoint.load(run / "checkpoints" / "best.pt")
        assert best["metric"] == max(map(float, column(run, "kl", "validation")))
        assert record.read_summary(run)["metrics"]["validation_kl"] == best["metric"]
        followed, loss, others = (  # not the test, which has other best weights
            [rows(each, phase) for phase in ("train", "validation")]
            for each in (run, whole(*VAE), whole(*VAE, "seed=1"))
        )
        assert list(followed[0][0])[:6] == [*record.METRIC_FIELDS, "reconstruction"]
        assert followed == loss != others


class HeadFirst(Supervised):
    """Trains the last layer alone in the first epoch."""

    def trainable(self, step: int) -> list[str] | None:
        return ["3.*"] if step <= self.steps_per_epoch else None


class Reentrant(nn.Module):
    """Checkpoints a block after a frozen layer, in the way that leaves it without
    gradients."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.frozen = nn.Linear(tiny.FEATURES, 8).requires_grad_(False)
        self.block = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)
        self.reentrant = reentrant

    def forward(self, inputs: Tensor) -> Any:
        hidden = self.frozen(inputs)
        return self.head(run_again(self.block, hidden, use_reentrant=self.reentrant))


class Briefly(Supervised):
    """Trains the first layer in step 1 alone, and an optimizer's parameters never."""

    def trainable(self, step: int) -> list[str]:
        return ["0.*", "3.weight"] if step == 1 else ["3.weight"]


class TestWhatIsTrained:
    @pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
    @pytest.mark.parametrize("shards", [1, 2])
    def test_parameters_without_a_gradient_are_named(
        self, shards: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """After the first step, and at the end, also of a run that was stopped after
        it.

        Negative control: the same model with gradients.
        """
        for reentrant in (True, False):
            model = {
                "name": "own",
                "_target_": f"{__name__}.Reentrant",
                "reentrant": reentrant,
            }
            words = of_method("Supervised", module="seedbed.methods", model=model)
            words = (*words, f"trainer.shards={shards}")
            folder = begun(tmp_path / str(reentrant), *words)
            warning = (
                "warning: model: 2 of 4 parameters got no gradient in {}"
                " (block.weight, "
            )
            assert work(folder, last_step=2) == 143
            first = capsys.readouterr().out
            assert (warning.format("step 1") in first) is reentrant
            assert "any step" not in first
            assert work(folder) == 0
            second = capsys.readouterr().out
            assert "step 1 (" not in second
            assert (warning.format("any step") in second) is reentrant
            assert "never trained" not in second
        assert "warning" not in second

    def test_parameters_that_no_step_trains_are_named(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Negative control: those of one step, before the run was stopped."""
        folder = begun(tmp_path / "run", *of_method("Briefly", module=__name__))
        assert work(folder, last_step=2) == 143
        assert "warning" not in capsys.readouterr().out
        assert work(folder) == 0
        out = capsys.readouterr().out
        assert (
            "warning: method: 1 of 4 parameters were never trained (3.bias): in no step"
            in out
        )
        assert "got no gradient" not in out

    def test_parameters_may_be_frozen_for_an_epoch(self) -> None:
        """An epoch has three steps. Negative control: the last layer is trained at
        once."""
        words = of_method("HeadFirst", "trainer.limit_train_batches=3", module=__name__)
        first, third, fourth = (
            weights(whole(*words, f"trainer.max_steps={steps}")) for steps in (1, 3, 4)
        )
        assert torch.equal(first["0.weight"], third["0.weight"])
        assert not torch.equal(first["3.weight"], third["3.weight"])
        assert not torch.equal(third["0.weight"], fourth["0.weight"])

    def test_frozen_parameters_are_trained_from_the_step_on_that_says_so(self) -> None:
        first, third, fourth = (
            weights(whole(*TUNING, f"trainer.max_steps={steps}")) for steps in (1, 3, 4)
        )
        assert torch.equal(first["0.weight"], third["0.weight"])
        assert not torch.equal(first["3.weight"], third["3.weight"])
        assert not torch.equal(third["0.weight"], fourth["0.weight"])

    def test_a_closure_is_run_at_the_weights_that_an_optimizer_has_moved(self) -> None:
        """As in sharpness-aware minimisation. Negative control: it moves the weights by
        0."""
        for words in (SAM, UNMOVED):
            state = checkpoint.load(whole(*words) / "checkpoints" / "last.pt")[
                "optimizer"
            ]["state"]
            before, moved = (
                torch.stack(each) for each in zip(*state["losses"], strict=True)
            )
            assert len(before) == 14
            assert torch.equal(before, moved) == (words == UNMOVED)

    def test_each_stream_has_a_seed_of_its_own(self) -> None:
        """The seed of the order changes it, those of dropout and initial weights only
        the loss."""
        first, order, *others = (
            whole(*TOKENS, f"seeds.{name}")
            for name in ("order=0", "order=5", "dropout=5", "init=5")
        )
        assert stages(first, "sample_ids")[0] != stages(order, "sample_ids")[0]
        for other in others:
            assert stages(first, "batch") == stages(other, "batch")
            assert stages(first, "loss")[0] != stages(other, "loss")[0]

    def test_bfloat16_is_another_computation(self) -> None:
        """The loss has other bits than in float32, but the weights stay float32."""
        for words in (VAE, GAN):
            run = whole(*words, *BFLOAT16)
            assert stages(run, "loss")[0] != stages(whole(*words), "loss")[0]
            assert {each.dtype for each in weights(run).values()} == {torch.float32}

    def test_gradients_are_weighted_by_what_a_shard_counts(self) -> None:
        """The mean over tokens does not depend on the number of shards, except for
        rounding."""
        words = (*TOKENS, "model.dropout=0", "trainer.max_steps=1")
        one, four = (whole(*words, f"trainer.shards={n}") for n in (1, 4))
        assert float(column(one, "loss")[0]) == pytest.approx(
            float(column(four, "loss")[0]), 1e-5
        )
        a = weights(one)
        b = weights(four)
        assert all(torch.allclose(a[name], b[name], atol=1e-5) for name in a)

    def test_each_group_has_the_factor_of_its_name(self) -> None:
        """metrics.csv logs the resulting learning rates; a schedule may also be a
        function."""
        run = whole(*SAWTOOTH)
        first = [float(cell) for cell in column(run, "learning_rate_first")]
        assert first == [0.001 * (1 - step % 4 / 4) for step in range(14)]
        assert set(column(run, "learning_rate_rest")) == {repr(0.006 * 0.5)}
        run = whole(*VAE, *tiny.replaced("schedule", f"{METHODS}.halved", start=0.5))
        rates = [float(cell) for cell in column(run, "learning_rate")]
        assert rates == [0.006 * (0.5 * 0.5**step) for step in range(14)]


class Marked(torch.autograd.Function):
    """The identity, whose node in a graph is known while the graph exists."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        _graphs.add(ctx)
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0].clone()


_graphs: WeakSet[Any] = WeakSet()
_left: list[int] = []  # graphs at the beginning of each pass


class SecondOrder(Supervised):
    """Keeps the graph of gradients; counts the graphs that are left of earlier
    steps."""

    create_graph = True

    def training_step(self, model: nn.Module, batch: Batch, optimizer: str) -> Any:
        _left.append(len(_graphs))
        loss = self.task.loss(Marked.apply(model(batch.inputs)), batch.targets)
        assert len(_graphs) > _left[-1], "negative control: this pass makes one"
        return loss


class FirstOrder(SecondOrder):
    create_graph = False


HUTCHINSON = tiny.replaced("optimizer", "tests.odd_optimizers.Hutchinson", lr=0.02)


@pytest.mark.filterwarnings("ignore:Using backward")
class TestSecondOrderOptimizers:
    @pytest.mark.long
    def test_they_train_to_the_same_bits_and_leave_no_graphs(
        self, tmp_path: Path
    ) -> None:
        """Twice, resumed, also in shards."""
        for shards in (1, 2):
            steps = (
                "trainer.max_steps=40",
                f"trainer.shards={shards}",
                "schedule=constant",
            )
            words = of_method("SecondOrder", *HUTCHINSON, *steps, module=__name__)
            run = whole(*words)
            resumed(tmp_path / f"{shards}", run, 22, *words)
            gc.collect()
            _left.clear()
            trained(tmp_path / f"{shards} again", *words)
            assert differences(run, tmp_path / f"{shards} again") == []
            losses = [float(cell) for cell in column(run, "loss", "validation")]
            assert losses[-1] < losses[0]
            assert shards == 2 or max(_left) == 0

    def test_one_that_lacks_the_graph_gets_the_advice(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words = of_method("FirstOrder", *HUTCHINSON, module=__name__)
        line = refused(tmp_path / "run", capsys, *words)
        assert line.startswith(
            "method: expected create_graph = True in FirstOrder for Hutchinson"
        )


class Looking(Supervised):
    """Logs values that run the model again, by functions."""

    def __init__(self, how: str) -> None:
        self.how = how

    def training_step(self, model: nn.Module, batch: Batch, optimizer: str) -> Any:
        def run_again() -> Tensor:
            if self.how == "in evaluation mode":
                model.eval()
            if self.how == "gradients":
                next(model.parameters()).grad.mul_(2)  # type: ignore[union-attr]
            return model(batch.inputs).mean() + torch.rand(())  # type: ignore[no-any-return]

        values = super().training_step(model, batch, optimizer)
        assert isinstance(values, dict)
        return values if self.how == "not at all" else {**values, "again": run_again}


def looking(
    how: str, layer: str = "BatchNorm1d", every_steps: int = 5
) -> tuple[str, ...]:
    net = {"name": "net", "_target_": f"{__name__}.net", "layer": layer}
    words = (f"++method.how='{how}'", f"trainer.log_every_steps={every_steps}")
    return of_method(
        "Looking", *words, "trainer.max_steps=21", module=__name__, model=net
    )


def net(layer: str) -> nn.Module:
    layers: dict[str, Callable[[], nn.Module]] = {
        "BatchNorm1d": lambda: nn.BatchNorm1d(8),
        "no counter": lambda: nn.BatchNorm1d(8),
        "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(
            nn.Linear(8, 8)
        ),
        "Dropout": lambda: nn.Dropout(0.5),
    }
    inner = layers[layer]()
    # kernels write its statistics without a trace of autograd
    if layer == "no counter":
        inner.num_batches_tracked = None
    return nn.Sequential(nn.Linear(tiny.FEATURES, 8), inner, nn.Linear(8, tiny.CLASSES))


class TestLoggedFunctions:
    @pytest.mark.parametrize(
        ("how", "layer"),
        [
            ("in evaluation mode", "BatchNorm1d"),
            ("in evaluation mode", "spectral norm"),
            ("in training mode", "Dropout"),
        ],
    )
    def test_how_often_they_are_called_changes_no_bit(
        self, how: str, layer: str
    ) -> None:
        """Modes are restored, and draws shift no later ones: as without the
        functions."""
        plain = whole(*looking("not at all", layer))
        for every_steps in (1, 5, 20):
            run = whole(*looking(how, layer, every_steps))
            assert record.read_fingerprints(run) == record.read_fingerprints(plain)
        assert any(column(run, "again"))

    @pytest.mark.parametrize(
        ("how", "layer"),
        [
            ("in training mode", "BatchNorm1d"),
            ("in training mode", "no counter"),
            ("in training mode", "spectral norm"),
            ("gradients", "Dropout"),
        ],
    )
    def test_those_that_change_something_are_refused(
        self, how: str, layer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for every_steps in (1, 20):
            words = (*looking(how, layer, every_steps), "trainer.rehearse_resume=false")
            line = refused(tmp_path / f"{every_steps}", capsys, *words)
            assert line.startswith(
                "method: expected functions of logged values that change noth"
            )
            assert "got again of training_step" in line


class TestCallbacks:
    def test_callbacks_read_everything_and_change_no_bit(self) -> None:
        """These callbacks draw, switch modes, clear gradients and keep state."""
        for words in (GAN, TEACHER):
            prints = [
                record.read_fingerprints(whole(*each))
                for each in (words, (*words, NORMS))
            ]
            assert prints[0] == prints[1]

    def test_what_callbacks_log_is_a_column(self) -> None:
        """Gradients are seen before clipping. Negative control: clipped norms would be
        smaller."""
        run = whole(
            *VAE, NORMS, "trainer.gradient_clip_norm=0.001", "trainer.max_steps=8"
        )
        assert min(float(cell) for cell in column(run, "gradient_norm")) > 0.01
        largest = [float(cell) for cell in column(run, "largest")]
        assert largest == sorted(largest)
        assert all(column(run, "weight", "validation"))
        state = checkpoint.load(run / "checkpoints" / "last.pt")["callback.norms"]
        assert state["largest"] == largest[-1]

    def test_callbacks_log_in_steps_that_are_logged(self) -> None:
        """Step 2 is rehearsed, but not logged; step 6 ends an epoch. The row of a step
        is written after its callbacks."""
        own = f"+callbacks.own._target_={__name__}.Marks"
        run = whole(*VAE, own, "trainer.log_every_steps=4", "trainer.max_steps=8")
        seen = {each.name: each.read_text() for each in run.glob("logged_*")}
        assert seen == {"logged_4": "4 []", "logged_6": "4 [4]", "logged_8": "4 [4, 6]"}

    @pytest.mark.parametrize("through_data", [False, True])
    @pytest.mark.parametrize(
        "at", ["on_before_optimizer_step", "on_step_end", "on_validation_end"]
    )
    def test_a_callback_that_changes_something_is_refused(
        self,
        at: str,
        through_data: bool,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        target = f"_target_:{METHODS}.Meddling"
        own = f"+callbacks.own={{{target},at:{at},through_data:{through_data}}}"
        line = refused(tmp_path / "run", capsys, *VAE, own, "trainer.max_steps=6")
        assert line.startswith(
            f"callbacks.own: Meddling.{at} changed weights, buffers or gradients"
        )

    def test_a_callback_that_freezes_weights_is_refused(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        own = f"+callbacks.own={{_target_:{METHODS}.Meddling,at:freezes}}"
        line = refused(tmp_path / "run", capsys, *VAE, own, "trainer.max_steps=6")
        assert "Meddling.on_step_end changed weights" in line


def test_a_run_starts_from_the_best_weights_of_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The record holds the SHA-256 of their file; if it has changed, a resume is
    refused."""
    file = tmp_path / "weights.pt"
    loaded = {
        "_target_": "seedbed.weights.Loaded",
        "file": str(file),
        "model": tiny.DENSE,
    }
    loaded["name"] = "tuned"
    file.write_bytes((whole(*TUNING) / "checkpoints" / "best.pt").read_bytes())
    words = of_method("Tokens", "optimizer.lr=0", model={**loaded, "skip": ["3.bias"]})
    run = begun(tmp_path / "run", *words)
    assert work(run, StopAt(9)) == 143
    found = weights(run)
    before = checkpoint.load(file)["model"]
    assert [name for name in found if not torch.equal(found[name], before[name])] == [
        "3.bias"
    ]
    content = bytearray(file.read_bytes())
    content[content.index(before["0.weight"].numpy().tobytes())] ^= 1
    file.write_bytes(content)
    line = refused(tmp_path / "damaged", capsys, *words)
    assert line.startswith("model.file: expected a file with tensors by name"), line
    digests = record.read_json(run / "environment.json")["files_sha256"]
    assert list(digests) == [str(file)]
    torch.save({name: value + 1 for name, value in before.items()}, file)
    assert work(run) == 2
    assert "weights.pt" in capsys.readouterr().err
    torch.save({"0.weight": torch.ones(2)}, file)
    line = refused(tmp_path / "other", capsys, *of_method("Tokens", model=loaded))
    assert line.startswith("model.file: expected the weights of")
    loaded["skip"] = ["4.*"]  # misspelt: layers 0 and 3 have weights
    line = refused(tmp_path / "unlike", capsys, *of_method("Tokens", model=loaded))
    assert line.startswith("model.skip: expected a pattern of")


def test_without_a_test_set_there_are_no_test_values() -> None:
    """Values of the validation set do not replace them. Negative control: a run with a
    test set."""
    for words, has in (((*TOKENS, "++data.test=null"), False), (TOKENS, True)):
        run = whole(*words)
        named = [
            key
            for key in record.read_summary(run)["metrics"]
            if key.startswith("test_")
        ]
        assert bool(named) == bool(rows(run, "test")) == has


@pytest.mark.parametrize("has_test_set", [False, True])
def test_the_validation_set_is_the_same_where_it_is_tested(has_test_set: bool) -> None:
    """Also if samples are drawn. Negative control: a test set of that class has other
    samples."""
    spec = {"_target_": "tests.data.loading.Drawn", "samples": 8}
    settings = typed(data={"validation": spec, "test": spec if has_test_set else None})
    built = sources.build_sources(settings)
    batches = [
        built[split][Position(0, np.arange(4))] for split in ("validation", "test")
    ]
    assert torch.equal(*(batch.inputs for batch in batches)) != has_test_set


class Marks(Callback):
    """Creates a file in each step that is logged, with the steps in metrics.csv so
    far."""

    def on_step_end(self, run: Run, step: int) -> None:
        if run.logs:
            steps = [
                entry.step for entry in run.history if "train/loss" in entry.values
            ]
            text = f"{run.settings['trainer']['log_every_steps']} {steps}"
            (run.folder / f"logged_{step}").write_text(text)


class Confusion(Callback):
    """Saves targets and predicted classes; logs a figure and the error rate."""

    def on_evaluation_end(self, run: Run, step: int, seen: Seen) -> None:
        right = (seen.outputs.argmax(1) == seen.targets).float()
        torch.testing.assert_close(right, seen.values["accuracy"])
        assert seen.ids.tolist() == list(range(len(right)))  # of the whole set
        assert len(seen.dataset) == run.settings["data"][seen.phase]["samples"]
        assert seen.epoch == run.epoch == step / run.steps_per_epoch
        some = seen.ids[[5, 0, 9]]
        with torch.no_grad():
            again = run.model(seen.inputs(some))
        # of the same noisy points
        torch.testing.assert_close(again, seen.outputs[some])
        table = seen.targets.tolist(), seen.outputs.argmax(1).tolist()
        np.savetxt(run.folder / f"{seen.phase}_{step}.txt", np.array(table))
        run.log("error_rate", 1 - right.mean())
        figure = Figure()
        figure.subplots().plot(*table)
        run.log_figure("pairs", figure)


UNSEEN = (*TUNING, "data.eval_batch_size=7")
SEEING = (*UNSEEN, f"+callbacks.own._target_={__name__}.Confusion")


def test_callbacks_see_validation_and_test_whole_and_change_no_bit(
    tmp_path: Path,
) -> None:
    """Also in a resumed run; values that they log in the test are in the summary."""
    run = whole(*SEEING)
    plain = whole(*UNSEEN)
    resumed(tmp_path / "stopped", run, 9, *SEEING)
    assert record.read_fingerprints(run) == record.read_fingerprints(plain)
    assert not (plain / "figures").exists(), "negative control"

    summary = record.read_summary(run)
    metrics = summary["metrics"]
    step = summary["tested_step"]
    assert metrics["test_error_rate"] == pytest.approx(1 - metrics["test_accuracy"])
    assert metrics["validation_error_rate"] == pytest.approx(
        1 - metrics["validation_accuracy"]
    )
    with (run / "test_predictions.csv").open() as file:
        rows = [
            (float(row["target"]), float(row["prediction"]))
            for row in csv.DictReader(file)
        ]
    assert np.loadtxt(run / f"test_{step}.txt").T.tolist() == [
        list(row) for row in rows
    ]
    assert imread(run / "figures" / f"test_pairs_{step}.png").ndim == 3
