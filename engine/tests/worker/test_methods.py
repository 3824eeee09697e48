"""Methods: whatever is trained, and however, with the promises that supervised training has."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from seedbed import config, launch, record
from seedbed.errors import InputError
from seedbed.methods import Make, Supervised
from seedbed.training import checkpoint
from seedbed.worker import experiment
from tests import tiny
from tests.running import composed
from tests.ways import differences
from tests.worker.test_resume import StopAt, work
from tests.worker.test_resume import (
    this_process_as_training_process as this_process_as_training_process,
)

MODULES = "tests.tiny.methods"
NETS = {"VAE": "Autoencoder", "WassersteinGAN": "Players", "Teacher": "Averaged"}
METHODS = ("VAE", "WassersteinGAN", "Teacher", "FineTuning", "Tokens")
SHORT = (
    "determinism=strict",
    "determinism.threads=1",
    "trainer.max_steps=14",
    "trainer.log_every_steps=1",
    "trainer.checkpoint_every_steps=3",
)


def begun(
    folder: Path,
    method: str,
    *overrides: str,
    module: str = MODULES,
    model: dict[str, Any] | None = None,
) -> Path:
    """Make the run folder of a method, as train.py does."""
    target = f"{MODULES}.{NETS[method]}" if method in NETS else None
    model = model or ({"name": "own", "_target_": target} if target else tiny.DENSE)
    chosen = ("~method", f"+method={{name:{method},_target_:{module}.{method}}}")
    words = ("seed=0", *SHORT, *tiny.overrides(model), *chosen, *overrides)
    settings = config.resolve(composed(*words))
    config.check(settings)
    launch.create_run_folder(folder, settings)
    return folder


def trained(folder: Path, method: str, *overrides: str) -> Path:
    assert work(begun(folder, method, *overrides)) == 0
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return runs that nobody stopped, one for each method."""
    runs: dict[str, Path] = {}

    def run(method: str) -> Path:
        if method not in runs:
            runs[method] = trained(tmp_path_factory.mktemp("whole") / "run", method)
        return runs[method]

    return run


def rows(folder: Path, phase: str) -> list[dict[str, str]]:
    return [row for row in record.read_metrics(folder) if row["phase"] == phase]


def column(folder: Path, name: str, phase: str = "train") -> list[str]:
    return [row[name] for row in rows(folder, phase)]


def stages(folder: Path, name: str) -> list[str]:
    return [row[name] for row in record.read_fingerprints(folder)]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.long
def test_a_method_stopped_at_any_point_ends_with_the_same_bits(
    method: str, whole: Callable[[str], Path], tmp_path: Path
) -> None:
    """Before and after columns were added to metrics.csv, and frozen weights are trained."""
    for check in (5, 15):
        folder = begun(tmp_path / str(check), method)
        assert work(folder, StopAt(check)) == 143
        assert work(folder) == 0
        assert differences(whole(method), folder) == [], f"stopped at check {check}"


@pytest.mark.parametrize("method", METHODS)
def test_the_number_of_loader_workers_changes_no_bit(
    method: str, whole: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = trained(tmp_path / "run", method, "data.num_workers=2")
    assert differences(whole(method), folder) == []
    other = trained(tmp_path / "other", method, "seed=1", "trainer.max_steps=2")
    assert stages(other, "loss")[0] != stages(folder, "loss")[0], "negative control"


class TestWhatIsLogged:
    def test_each_part_of_a_loss_is_a_column(self, whole: Callable[[str], Path]) -> None:
        """In training and in evaluations; the loss is their sum, and what best.pt follows."""
        run = whole("VAE")
        for phase in ("train", "validation", "test"):
            for row in rows(run, phase):
                parts = float(row["reconstruction"]) + float(row["kl"])
                assert float(row["loss"]) == pytest.approx(parts)
                assert "metric" not in row
        summary = record.read_summary(run)
        assert summary["metric_name"] == "loss"
        best = min(column(run, "loss", "validation"), key=float)
        assert summary["metrics"]["best_validation_loss"] == float(best)
        assert not (run / "test_predictions.csv").exists()

    def test_each_optimizer_has_its_loss_and_learning_rate(
        self, whole: Callable[[str], Path]
    ) -> None:
        """A cell is empty in steps that do not update it."""
        run = whole("WassersteinGAN")
        assert [bool(cell) for cell in column(run, "generator_loss")] == 7 * [True, False]
        assert all(column(run, "critic_loss"))
        assert column(run, "loss")[0] == column(run, "generator_loss")[0], "of the last update"
        ratios = {
            round(float(a) / float(b), 6)
            for a, b in zip(
                column(run, "learning_rate_critic"),
                column(run, "learning_rate_generator"),
                strict=True,
            )
        }
        assert ratios == {round(0.01 / 0.006, 6)}

    def test_a_mean_over_the_set_is_that_of_all_its_tokens(
        self, whole: Callable[[str], Path]
    ) -> None:
        """(sum, count) of batches that have different numbers of them."""
        assert set(column(whole("Tokens"), "tokens", "validation")) == {"16.0"}
        assert "drawn at the end: " in (whole("Tokens") / "train.log").read_text()

    def test_monitor_and_mode_choose_what_best_pt_follows(self, tmp_path: Path) -> None:
        run = trained(tmp_path / "run", "VAE", "trainer.monitor=validation_kl", "trainer.mode=max")
        best = checkpoint.load(run / "checkpoints" / "best.pt")
        assert best["metric"] == max(map(float, column(run, "kl", "validation")))
        assert "best_validation_kl" in record.read_summary(run)["metrics"]

    def test_columns_do_not_depend_on_what_is_followed(
        self, whole: Callable[[str], Path], tmp_path: Path
    ) -> None:
        """Each metric has its own, byte for byte the same; control: another seed."""
        run = trained(tmp_path / "run", "VAE", "trainer.monitor=validation_kl", "trainer.mode=max")
        phases = ("train", "validation")  # other weights are the best, and tested
        followed, loss = ([rows(each, phase) for phase in phases] for each in (run, whole("VAE")))
        assert followed == loss
        assert list(followed[0][0])[:6] == [*record.METRIC_FIELDS, "reconstruction"]
        other = trained(tmp_path / "other", "VAE", "seed=1")
        assert [rows(other, phase) for phase in phases] != loss


@pytest.mark.parametrize(
    ("method", "chosen", "line"),
    [
        ("Supervised", "trainer.monitor=f1",
         "trainer.monitor: expected a value of Supervised.validation_step, got validation_f1"),
        ("VAE", "trainer.monitor=kl",
         "trainer.mode: expected min or max, since nothing says which kl is better, got null; "
         "say which, or mend trainer.monitor, if misspelt; known so far are validation_"),
        ("Supervised", "objective=test_f1",
         "objective: expected one of last_train_loss, validation_loss"),
    ],
)  # fmt: skip
def test_what_no_evaluation_has_is_refused_before_training(
    method: str, chosen: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What exists is said before the mode is asked for."""
    module = "seedbed.methods" if method == "Supervised" else MODULES
    folder = begun(tmp_path / "run", method, chosen, module=module)
    assert work(folder) == 2
    assert capsys.readouterr().err.startswith(f"error: {line}")


class TestWhatIsTrained:
    def test_an_update_changes_the_parameters_of_its_optimizer_alone(
        self, whole: Callable[[str], Path], tmp_path: Path
    ) -> None:
        """The generator rests in every second step: its weights are those of the step before."""
        weights = []
        for steps in (1, 2, 3):
            run = trained(tmp_path / str(steps), "WassersteinGAN", f"trainer.max_steps={steps}",
                          "schedule=constant")  # fmt: skip
            weights.append(checkpoint.load(run / "checkpoints" / "last.pt")["model"])
        for name in weights[0]:
            first, second, third = (state[name] for state in weights)
            assert torch.equal(first, second) == name.startswith("generator."), name
            assert not torch.equal(second, third), name

    def test_frozen_parameters_are_trained_from_the_step_on_that_says_so(
        self, tmp_path: Path
    ) -> None:
        weights = []
        for steps in (1, 3, 4):
            run = trained(tmp_path / str(steps), "FineTuning", f"trainer.max_steps={steps}")
            weights.append(checkpoint.load(run / "checkpoints" / "last.pt")["model"])
        first, third, fourth = weights
        assert torch.equal(first["0.weight"], third["0.weight"])
        assert not torch.equal(first["3.weight"], third["3.weight"])
        assert not torch.equal(third["0.weight"], fourth["0.weight"])

    def test_an_average_is_updated_before_the_fingerprint(
        self, whole: Callable[[str], Path]
    ) -> None:
        """And draws of its own belong to the step: the buffer differs in each."""
        assert len(set(stages(whole("Teacher"), "buffers"))) == 14

    def test_named_values_and_fingerprints_change_no_bit(self, tmp_path: Path) -> None:
        """Of a GAN, whose steps have several updates."""
        runs = [
            trained(tmp_path / str(every), "WassersteinGAN", f"trainer.log_every_steps={every}",
                    f"fingerprint.every_steps={1 + every}")
            for every in (1, 4)
        ]  # fmt: skip
        first, second = (record.read_summary(run)["fingerprints"]["weights"] for run in runs)
        assert first == second

    def test_lbfgs_repeats_its_passes_and_resumes(self, tmp_path: Path) -> None:
        optimizer = (
            "optimizer={name:lbfgs,_target_:torch.optim.LBFGS,lr:0.1,line_search_fn:strong_wolfe}"
        )
        chosen = ("~optimizer", f"+{optimizer}", "schedule=constant", "data.batch_size=24")
        run, stopped = (begun(tmp_path / name, "Tokens", *chosen) for name in "ab")
        assert work(run) == 0
        assert work(stopped, StopAt(6)) == 143
        assert work(stopped) == 0
        assert differences(run, stopped) == []
        state = checkpoint.load(run / "checkpoints" / "last.pt")["optimizer"]["state"][0]
        assert state["func_evals"] > 14, "several in a step"


@pytest.mark.parametrize("method", ["VAE", "WassersteinGAN"])
def test_methods_train_in_bfloat16(
    method: str, whole: Callable[[str], Path], tmp_path: Path
) -> None:
    """The weights stay float32; negative control: other bits than in float32."""
    chosen = (method, "trainer.precision=bfloat16", "trainer.max_steps=6")
    run, stopped = (begun(tmp_path / name, *chosen) for name in "ab")
    assert work(run) == 0
    assert work(stopped, StopAt(4)) == 143
    assert work(stopped) == 0
    assert differences(run, stopped) == []
    assert stages(run, "loss")[0] != stages(whole(method), "loss")[0]


@pytest.mark.long
def test_a_compiled_model_resumes_with_the_same_bits(tmp_path: Path) -> None:
    run, stopped = (
        begun(tmp_path / name, "VAE", "trainer.compile=true", "trainer.max_steps=4")
        for name in "ab"
    )
    assert work(run) == 0
    assert work(stopped, StopAt(3)) == 143
    assert work(stopped) == 0
    assert differences(run, stopped) == []


class TestShards:
    def test_gradients_are_weighted_by_what_a_shard_counts(self, tmp_path: Path) -> None:
        """The mean over tokens does not depend on how a batch is cut, but for its rounding."""
        chosen = ("model.dropout=0", "trainer.max_steps=1")
        one, four = (
            trained(tmp_path / str(n), "Tokens", *chosen, f"trainer.shards={n}") for n in (1, 4)
        )
        assert float(column(one, "loss")[0]) == pytest.approx(float(column(four, "loss")[0]), 1e-5)
        a, b = (checkpoint.load(run / "checkpoints" / "last.pt")["model"] for run in (one, four))
        assert all(torch.allclose(a[name], b[name], atol=1e-5) for name in a)

    @pytest.mark.parametrize(
        ("method", "shards"),
        [("VAE", 2), ("WassersteinGAN", 2), ("Teacher", 2), ("FineTuning", 2), ("VAE", 3)],
    )
    def test_methods_train_in_shards(self, method: str, shards: int, tmp_path: Path) -> None:
        """Any number of them on one process, which is gradient accumulation."""
        size = 12 if shards == 3 else 8
        chosen = (method, f"trainer.shards={shards}", f"data.batch_size={size}",
                  "trainer.max_steps=8")  # fmt: skip
        run, stopped = (begun(tmp_path / name, *chosen) for name in "ab")
        assert work(run) == 0
        assert work(stopped, StopAt(5)) == 143
        assert work(stopped) == 0
        assert differences(run, stopped) == []


def refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], members: dict[str, Any], *overrides: str,
    model: dict[str, Any] | None = None,
) -> str:  # fmt: skip
    """Return the one line with which a run ends whose method has such members."""
    globals()["Made"] = type("Made", (Supervised,), {**members, "__module__": __name__})
    folder = begun(tmp_path / "run", "Made", *overrides, module=__name__, model=model)
    assert work(folder) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: "), error
    assert error.count("\n") == 1, error
    return error.removeprefix("error: ")


def constant(value: Any) -> Callable[..., Any]:
    return lambda *_: value


def loss_of(model: nn.Module, batch: Any) -> Tensor:
    return model(batch.inputs).square().mean()  # type: ignore[no-any-return]


def with_loss(**others: Any) -> dict[str, Any]:
    """Return a method whose training step returns a loss and other entries."""
    return {"training_step": lambda _, model, batch, __: {"loss": loss_of(model, batch), **others}}


@pytest.mark.parametrize(
    ("members", "line"),
    [
        ({"training_step": constant(torch.tensor(1.0))}, "got one that depends on no weight"),
        (with_loss(kl=torch.ones(3)), "in 'kl' of Made.training_step, got a tensor of shape (3,)"),
        (with_loss(step=1.0), "from Made.training_step, other than step, epoch"),
        ({"validation_step": constant({"loss": torch.tensor(1.0)})},
         "in 'loss' of Made.validation_step, got a tensor of shape ()"),
        ({"validation_step": lambda _, model, batch: {"accuracy": torch.ones(len(batch.ids), 2)}},
         "in 'accuracy' of Made.validation_step for a mean, got ("),
        ({"validation_step": constant({"accuracy": torch.ones(3), "predictions": torch.ones(3)})},
         "in 'predictions' of Made.validation_step, got a tensor of shape (3,)"),
        ({"validation_step": constant({"f1": torch.ones(3)})},
         "trainer.monitor: expected a value of Made.validation_step, got validation_accuracy"),
        ({"compute": constant({"loss": torch.ones(2)})}, "in 'loss' of Made.compute, got a tensor"),
        ({"updates": constant(["critic"])}, "from Made.updates, got 'critic'; return those"),
        ({"trainable": constant(["head.*"])}, "from Made.trainable, got 'head.*', which none does"),
        ({"trainable": constant(["0.*"]), "updates": constant(["second"]),
          "configure_optimizers":
          lambda _, model, make: {"first": make(model[0].named_parameters()),
                                  "second": make(model[3].named_parameters())}},
         "parameters that Made.trainable names in step 1, got second, whose are all frozen"),
        ({"on_step_end": lambda self, model, step: self.kept.param_groups[0].update(lr=0.1),
          "configure_optimizers": lambda self, model, make:
          self.__dict__.setdefault("kept", make(model.named_parameters()))},
         "schedule: expected learning rates that it alone sets, got Made.on_step_end"),
        ({"configure_optimizers": lambda *_: torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1)},
         "parameters of the model in the SGD of Made.configure_optimizers, got others"),
    ],
)  # fmt: skip
def test_what_a_method_returns_of_another_kind_is_named_in_one_line(
    members: dict[str, Any], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert line in refused(tmp_path, capsys, members, "trainer.max_steps=3")


class Counting(Supervised):
    """Keeps state that no checkpoint holds."""

    def __init__(self) -> None:
        self.calls = 0

    def training_step(self, model: nn.Module, batch: Any, optimizer: str) -> Any:
        self.calls += 1
        return model(batch.inputs).square().mean() * self.calls


class Drawing(Supervised):
    """Draws from a generator of its own."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)

    def training_step(self, model: nn.Module, batch: Any, optimizer: str) -> Any:
        noise = torch.rand(batch.inputs.shape, generator=self.generator)
        return model(batch.inputs + noise).square().mean()


class Pupil(Supervised):
    """Evaluates a teacher beside the model: no loss and no gradient ever shows it."""

    def configure_optimizers(self, model: nn.Module, make: Make) -> Any:
        self.teacher = copy.deepcopy(model).requires_grad_(False)
        return make(model.named_parameters())

    def on_step_end(self, model: nn.Module, step: int) -> None:
        for average, weight in zip(self.teacher.parameters(), model.parameters(), strict=True):
            average.lerp_(weight, 0.1)

    def validation_step(self, model: nn.Module, batch: Any) -> Any:
        return super().validation_step(self.teacher, batch)


@pytest.mark.parametrize(
    ("method", "line"),
    [("Counting", "error: model: expected the same loss in step 2"),
     ("Drawing", "error: model: expected the same loss in step 2"),
     ("Pupil", "error: model: expected the same evaluation in step 2")],
)  # fmt: skip
def test_state_that_a_method_keeps_is_refused(
    method: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert work(begun(tmp_path / "run", method, module=__name__)) == 2
    assert capsys.readouterr().err.startswith(line)


class TestWhatMethodsKeep:
    """The optimizers, say, or results of `compute`: looking at it changes nothing of it."""

    @pytest.mark.parametrize("method", ["Decaying", "Forgetting", "TwoFrozen"])
    def test_it_resumes_with_the_same_bits(self, method: str, tmp_path: Path) -> None:
        run, stopped = (begun(tmp_path / name, method, module=__name__) for name in "ab")
        assert work(run) == 0
        assert work(stopped, StopAt(6)) == 143
        assert work(stopped) == 0
        assert differences(run, stopped) == []


class Decaying(Supervised):
    """Changes an option of its optimizer after each step."""

    def configure_optimizers(self, model: nn.Module, make: Make) -> Any:
        self.kept = make(model.named_parameters())
        return self.kept

    def on_step_end(self, model: nn.Module, step: int) -> None:
        self.kept.param_groups[0]["weight_decay"] = 0.1 * step


class Forgetting(Decaying):
    """Empties its optimizer in the second step of the process that resumes."""

    def on_step_end(self, model: nn.Module, step: int) -> None:
        if step == 7:
            self.kept.state.clear()


class TwoFrozen(Supervised):
    """Two optimizers, one of which has nothing to train at first."""

    def configure_optimizers(self, model: Any, make: Make) -> Any:
        return {
            "first": make(model[0].named_parameters()),
            "second": make(model[3].named_parameters()),
        }

    def trainable(self, step: int) -> list[str] | None:
        return ["0.*"] if step < 5 else None


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (lambda model: model.eval(), 0),
        (lambda model: model[0].requires_grad_(False), 0),
        (lambda model: setattr(model[0], "weight", nn.Parameter(torch.ones(16, 8))), 2),
        (lambda model: model.__setitem__(3, nn.Linear(16, 3)), 2),
    ],
)
def test_what_a_later_step_changes_of_a_model_is_restored_or_refused(
    change: Callable[[Any], Any], status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Modes and frozen weights are in checkpoints; other parameters are none of the optimizer's."""

    def later(_: Any, model: Any, step: int) -> None:
        if step == 5:
            change(model)

    globals()["Made"] = type("Made", (Supervised,), {"on_step_end": later})
    run, stopped = (begun(tmp_path / name, "Made", module=__name__) for name in "ab")
    assert work(run) == status
    if status == 0:
        assert work(stopped, StopAt(9)) == 143
        assert work(stopped) == 0
        assert differences(run, stopped) == []
    else:
        assert capsys.readouterr().err.startswith("error: model: expected the parameters that its")


def test_a_closure_is_run_at_the_weights_that_an_optimizer_has_moved(tmp_path: Path) -> None:
    """Sharpness-aware minimisation: a closure that is no longer needed without a move."""
    optimizer = "optimizer={name:sam,_target_:tests.odd_optimizers.SAM,lr:0.1,rho:RHO}"
    for rho in ("0.5", "0"):
        run, stopped = (
            begun(
                tmp_path / rho / name, "Tokens", "~optimizer", f"+{optimizer.replace('RHO', rho)}"
            )
            for name in "ab"
        )
        assert work(run) == 0
        assert work(stopped, StopAt(6)) == 143
        assert work(stopped) == 0
        assert differences(run, stopped) == []
        losses = checkpoint.load(run / "checkpoints" / "last.pt")["optimizer"]["state"]["losses"]
        before, moved = (torch.stack(each) for each in zip(*losses, strict=True))
        assert len(losses) == 14
        assert torch.equal(before, moved) == (rho == "0")


def test_shards_must_agree_on_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def training_step(_: Any, model: nn.Module, batch: Any, __: str) -> Any:
        others = {"seen": 1.0} if int(batch.ids[0]) % 2 else {}
        return {"loss": loss_of(model, batch), **others}

    line = refused(tmp_path, capsys, {"training_step": training_step}, "trainer.shards=8")
    assert "the same names from Made.training_step for all shards" in line


def test_a_method_needs_no_task(tmp_path: Path) -> None:
    """And Supervised says in one line that it does."""
    run = trained(tmp_path / "run", "VAE", "~data.task")
    assert record.read_summary(run)["task"] is None
    with pytest.raises(InputError, match=r"^data\.task: expected a task for method=supervised"):
        begun(tmp_path / "plain", "Supervised", "~data.task", module="seedbed.methods")


class TestCallbacks:
    CHOSEN = f"+callbacks.norms._target_={MODULES}.Norms"

    @pytest.mark.parametrize("method", ["WassersteinGAN", "Teacher"])
    def test_callbacks_read_everything_and_change_no_bit(
        self, method: str, whole: Callable[[str], Path], tmp_path: Path
    ) -> None:
        """They draw, switch modes and keep state, which resumes with the run."""
        run, stopped = (begun(tmp_path / name, method, self.CHOSEN) for name in "ab")
        assert work(run) == 0
        assert work(stopped, StopAt(9)) == 143
        assert work(stopped) == 0
        assert differences(run, stopped) == []
        assert record.read_fingerprints(run) == record.read_fingerprints(whole(method))
        texts = [(each / "seen_at_12.txt").read_text() for each in (run, stopped)]
        assert texts[0] == texts[1]

    def test_what_callbacks_log_is_a_column(self, tmp_path: Path) -> None:
        """Of the gradients before they are clipped; negative control: clipped, they are shorter."""
        clipped = "trainer.gradient_clip_norm=0.001"
        run = trained(tmp_path / "run", "VAE", self.CHOSEN, clipped, "trainer.max_steps=8")
        assert min(float(cell) for cell in column(run, "gradient_norm")) > 0.01
        largest = [float(cell) for cell in column(run, "largest")]
        assert largest == sorted(largest)
        assert all(column(run, "weight", "validation"))
        state = checkpoint.load(run / "checkpoints" / "last.pt")["callback.norms"]
        assert state["largest"] == largest[-1]

    @pytest.mark.parametrize("through_data", [False, True])
    @pytest.mark.parametrize(
        ("at", "hook"),
        [("gradients", "on_before_optimizer_step"), ("step", "on_step_end"),
         ("validation", "on_validation_end")],
    )  # fmt: skip
    def test_a_callback_that_changes_something_is_refused(
        self, at: str, hook: str, through_data: bool, tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:  # fmt: skip
        target = (
            f"+callbacks.own={{_target_:{MODULES}.Meddling,at:{at},through_data:{through_data}}}"
        )
        assert work(begun(tmp_path / "run", "VAE", target, "trainer.max_steps=6")) == 2
        line = (
            f"error: callbacks.own: expected a callback that changes nothing, got Meddling.{hook}"
        )
        assert capsys.readouterr().err.startswith(line)


class TestSchedulesOfOnesOwn:
    @staticmethod
    def own(target: str, **arguments: Any) -> tuple[str, ...]:
        more = "".join(f",{name}:{value}" for name, value in arguments.items())
        return ("~schedule", f"+schedule={{name:own,_target_:{MODULES}.{target}{more}}}")

    def test_each_group_has_the_factor_of_its_name(self, tmp_path: Path) -> None:
        """As metrics.csv logs it, truly; stopped and resumed as well."""
        chosen = ("FineTuning", *self.own("Sawtooth", period=4))
        run, stopped = (begun(tmp_path / name, *chosen) for name in "ab")
        assert work(run) == 0
        assert work(stopped, StopAt(6)) == 143
        assert work(stopped) == 0
        assert differences(run, stopped) == []
        first = [float(cell) for cell in column(run, "learning_rate_first")]
        assert first == [0.001 * (1 - step % 4 / 4) for step in range(14)]
        assert set(column(run, "learning_rate_rest")) == {repr(0.006 * 0.5)}


class TestFineTuning:
    @staticmethod
    def model(file: Path, **arguments: Any) -> dict[str, Any]:
        inner = {key: value for key, value in tiny.DENSE.items() if key != "name"}
        return {"name": "tuned", "_target_": "seedbed.weights.Loaded", "file": str(file),
                "model": inner, **arguments}  # fmt: skip

    def test_a_run_starts_from_the_best_weights_of_another(
        self, whole: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Whose file the record knows by its digest: another content refuses to resume."""
        file = tmp_path / "weights.pt"
        file.write_bytes((whole("FineTuning") / "checkpoints" / "best.pt").read_bytes())
        model = self.model(file, skip=["3.bias"])
        run = begun(tmp_path / "run", "Tokens", "optimizer.lr=0", model=model)
        assert work(run, StopAt(9)) == 143
        found = checkpoint.load(run / "checkpoints" / "last.pt")["model"]
        before = checkpoint.load(file)["model"]
        assert [name for name in found if not torch.equal(found[name], before[name])] == ["3.bias"]
        digests = record.read_json(run / "environment.json")["files_sha256"]
        assert list(digests) == [str(file)]
        torch.save({name: value + 1 for name, value in before.items()}, file)
        assert work(run) == 2
        assert "weights.pt" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("state", "line"),
        [
            ({}, "which lacks 0.bias, 0.weight, 3.bias"),
            ({"0.weight": torch.ones(2)}, "which lacks 0.bias"),
            ("text", "expected tensors by name"),
        ],
    )
    def test_weights_of_another_model_are_refused_in_one_line(
        self, state: Any, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "weights.pt"
        torch.save(state, file)
        assert work(begun(tmp_path / "run", "Tokens", model=self.model(file))) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: model.file: expected")
        assert line in error


def test_without_a_test_set_there_are_no_test_values(tmp_path: Path) -> None:
    """Those of the validation set are no test's; negative control: with one, there are."""
    for name, words in (("none", ("++data.test=null",)), ("one", ())):
        run = begun(tmp_path / name, "Tokens", *words)
        assert work(run) == 0
        named = [key for key in record.read_summary(run)["metrics"] if key.startswith("test_")]
        assert bool(named) == bool(rows(run, "test")) == (name == "one")


def test_a_resume_that_fails_early_keeps_what_the_summary_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begun(tmp_path / "run", "Tokens")
    assert work(run, StopAt(6)) == 143
    before = record.read_summary(run)

    def closed(*_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(experiment, "print_header", closed)
    assert work(run) == 1
    after = record.read_summary(run)
    assert (after["status"], after["steps"]) == ("failed", before["steps"])
    assert after["metrics"] == before["metrics"]
