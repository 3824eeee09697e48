"""The models take what they say, answer in float32, and refuse what they cannot take."""

import math
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import TorchDispatchMode

from project.models.cnn import CNN
from project.models.recurrent import Recurrent
from seedbed import config, determinism, fingerprint
from seedbed.config.compose import compose
from seedbed.errors import InputError
from seedbed.worker import assemble

IMAGE, SEQUENCE = (1, 28, 28), (20, 2)


def cnn(dropout: float = 0.0) -> CNN:
    torch.manual_seed(0)
    return CNN(IMAGE, outputs=10, channels=[4, 8], dropout=dropout)


def recurrent(
    cell: str = "lstm",
    shape: tuple[int, ...] = SEQUENCE,
    hidden_size: int = 8,
    layers: int = 1,
    dropout: float = 0.0,
) -> Recurrent:
    torch.manual_seed(0)
    return Recurrent(shape, 3, cell, hidden_size, layers, dropout)


CASES = [
    pytest.param(cnn, IMAGE, 10, id="cnn"),
    pytest.param(lambda: recurrent("rnn"), SEQUENCE, 3, id="rnn"),
    pytest.param(lambda: recurrent("lstm", layers=2, dropout=0.5), SEQUENCE, 3, id="lstm"),
    pytest.param(lambda: recurrent("lstm", IMAGE), IMAGE, 3, id="lstm-on-images"),
]


def inputs(shape: tuple[int, ...], batch_size: int = 5) -> Tensor:
    return torch.randn(batch_size, *shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("shape", [IMAGE, (3, 32, 32), (1, 9, 13), (2, 5, 5)])
def test_a_cnn_fits_images_of_any_size(shape: tuple[int, int, int]) -> None:
    """The linear layer fits what the convolutions leave, for even and odd sides."""
    assert CNN(shape, 10, [4, 8], 0.0)(inputs(shape)).shape == (5, 10)


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.processor
@pytest.mark.parametrize(("make", "shape", "outputs"), CASES)
def test_outputs_are_float32_with_or_without_autocast(make, shape, outputs, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """A model answers (B, outputs) in float32, in bfloat16 autocast too, and passes gradients.

    Without oneDNN where that has no LSTM in bfloat16: the advice of `refusals.check_precision`.
    """
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", determinism.computes_bfloat16())
    model = make()
    plain = model(inputs(shape))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        automatic = model(inputs(shape))
    for result in (plain, automatic):
        assert result.shape == (5, outputs)
        assert result.dtype == torch.float32
    automatic.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.processor
def test_autocast_reaches_the_layers() -> None:
    """Autocast changes what is computed (so that the test above can fail)."""
    model = cnn()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        automatic = model(inputs(IMAGE))
        assert model.features(inputs(IMAGE)).dtype == torch.bfloat16
    assert not torch.equal(automatic, model(inputs(IMAGE)))


def test_memory_order_changes_no_meaning() -> None:
    """A channels-last model on channels-last images answers the same but for rounding."""
    images = inputs(IMAGE)
    expected = cnn()(images)
    model = cnn().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    answers = model(images.to(memory_format=torch.channels_last))
    assert (answers - expected).abs().max() < 1e-5


class Workspaces(TorchDispatchMode):
    """Hashes what oneDNN's LSTM leaves in the memory that it works in."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **kwargs or {})
        if str(func) == "aten.mkldnn_rnn_layer.default":
            self.found.append(int(fingerprint.of_tensors([result[3]])))
        return result


def lstm_bits(filled: bool, dirt: float) -> tuple[int, int]:
    """Return hashes of answers and gradients, and of the workspace, over memory with dirt in it."""
    model, x = recurrent("lstm", (100, 2), 64), torch.randn(64, 100, 2)
    if not filled:
        determinism.leave_recurrent_unfilled(model)
    torch.full((6_300_000,), dirt)  # of the workspace's size
    with Workspaces() as workspaces:
        answers = model(x)
    answers.sum().backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return int(fingerprint.of_tensors([answers, *gradients])), workspaces.found[0]


def test_an_lstm_reads_no_memory_before_it_writes_it() -> None:
    """Whatever lies in its workspace, the bits are those that it gives when that is filled."""
    torch.use_deterministic_algorithms(True)
    try:
        ours, theirs = (
            [lstm_bits(filled, dirt) for dirt in (0.0, 1e30, math.nan)] for filled in (False, True)
        )
    finally:
        torch.use_deterministic_algorithms(False)
    assert len({bits for bits, _ in ours + theirs}) == 1
    assert len({workspace for _, workspace in ours}) > 1, "negative control: the dirt was there"
    assert len({workspace for _, workspace in theirs}) == 1


@pytest.mark.parametrize(("make", "shape", "outputs"), CASES)
def test_models_can_be_captured_for_compilation(make, shape, outputs) -> None:  # type: ignore[no-untyped-def]
    """torch.compile's capture of a model computes what the model computes, to the bit."""
    model = make().eval()
    captured = torch.compile(model, backend="eager")
    assert torch.equal(captured(inputs(shape)), model(inputs(shape)))


@pytest.mark.parametrize(
    ("model", "count"),
    [
        (CNN(IMAGE, 10, [16, 32, 64], 0.0), 26 * 16 + 145 * 32 + 289 * 64 + 5770),
        (Recurrent((100, 2), 1, "lstm", 64, 1, 0.0), 4 * 64 * (2 + 64 + 2) + 65),
        (Recurrent((100, 2), 1, "rnn", 64, 1, 0.0), 64 * (2 + 64 + 2) + 65),
        (Recurrent(IMAGE, 10, "lstm", 64, 2, 0.0), 4 * 64 * (28 + 64 + 2 + 64 + 64 + 2) + 650),
    ],
)
def test_a_model_has_the_parameters_that_it_should(model: nn.Module, count: int) -> None:
    """The number of parameters is that of the textbook."""
    assert parameters(model) == count


def test_an_image_is_a_sequence_of_its_rows() -> None:
    """A recurrent model reads an image row by row, all channels of a row at once."""
    images = inputs((2, 6, 4))
    model = recurrent(shape=(2, 6, 4))
    rows = torch.stack([images[:, :, row].flatten(1) for row in range(6)], dim=1)
    assert torch.equal(model(images), model(rows))
    assert not torch.equal(model(images), model(rows.flip(1)))


def test_dropout_lies_outside_the_recurrent_layers_and_only_in_training() -> None:
    """Recurrent layers have no dropout inside; the model's own acts in training alone."""
    model = recurrent(layers=2, dropout=0.5)
    assert all(layer.dropout == 0 and layer.num_layers == 1 for layer in model.layers)
    assert not torch.equal(model(inputs(SEQUENCE)), model(inputs(SEQUENCE)))
    model.eval()
    assert torch.equal(model(inputs(SEQUENCE)), model(inputs(SEQUENCE)))


def test_an_lstm_starts_with_gates_for_the_length_of_the_sequence() -> None:
    """Forget gates start open for 1 to T - 1 steps, input gates closed as much; others do not."""
    layer = recurrent(shape=(100, 2), hidden_size=500).layers[0]
    gates = (layer.bias_ih_l0 + layer.bias_hh_l0).detach().chunk(4)
    steps = gates[1].exp()
    assert torch.equal(gates[0], -gates[1])
    assert 1 <= steps.min() < 3
    assert 97 < steps.max() <= 99
    assert 45 < steps.median() < 55
    assert all(gate.abs().max() < 2 / math.sqrt(500) for gate in gates[2:])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: CNN((100, 2), 1, [4], 0.0),
            r"model\.input_shape: expected .* got \(100, 2\); try",
        ),
        (lambda: CNN((1, 7, 28), 1, [4, 4, 4], 0.0), r"model\.input_shape: .* at least 8 pixels"),
        (lambda: CNN(IMAGE, 1, [], 0.0), r"model\.channels: expected .* got \[\]; try"),
        (lambda: CNN(IMAGE, 1, [4, 0], 0.0), r"model\.channels: expected .* got \[4, 0\]; try"),
        (lambda: recurrent("gru"), r"model\.cell: expected rnn or lstm, got gru; try lstm"),
        (lambda: recurrent(shape=(5,)), r"model\.input_shape: expected .* got \(5,\); give"),
        (lambda: CNN(5, 1, [4], 0.0), r"model\.input_shape: expected a list .* got 5; try"),
        (lambda: CNN([1, 28, 0], 1, [4], 0.0), r"model\.input_shape: expected a list"),
        (lambda: CNN(IMAGE, "abc", [4], 0.0), r"model\.outputs: expected an integer .* got 'abc'"),
        (lambda: CNN(IMAGE, 0, [4], 0.0), r"model\.outputs: expected an integer >= 1, got 0; set"),
        (lambda: CNN(IMAGE, 1, [4], 2), r"model\.dropout: expected a number from 0 to 1, got 2"),
        (lambda: recurrent(dropout=None), r"model\.dropout: expected a number .* got None"),
        (lambda: recurrent(hidden_size=0), r"model\.hidden_size: expected an integer .* got 0"),
        (lambda: recurrent(layers=[64, 64]), r"model\.layers: .* got \[64, 64\]; try"),
    ],
)
def test_a_shape_that_a_model_cannot_take_is_refused(make, message: str) -> None:  # type: ignore[no-untyped-def]
    """What a model cannot be built for is refused in one line that names the key."""
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize(("chosen", "symbolic"), [({}, False), ({"dynamic": None}, True)])
def test_compiled_kernels_do_not_depend_on_the_shapes_before(
    chosen: dict[str, Any], symbolic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resume may evaluate before it trains; negative control: by default PyTorch keeps later
    sizes open."""
    seen: list[bool] = []

    def look(graph: fx.GraphModule, inputs: list[Any]) -> Any:
        seen.append(any(isinstance(one, torch.SymInt) for one in inputs))
        return graph.forward

    compiled = nn.Module.compile
    monkeypatch.setattr(
        nn.Module, "compile", lambda self, **how: compiled(self, backend=look, **(how | chosen))
    )
    resolved = config.resolve(compose("trainer.compile=true", "model.channels=[4]"))
    settings = OmegaConf.to_container(resolved)
    model = assemble.build_training_state(settings, torch.device("cpu")).model  # type: ignore[arg-type]
    with torch.no_grad():
        for size in (30, 10):
            model.eval()(inputs(IMAGE, size))
    model.train()(inputs(IMAGE, 16))
    torch.compiler.reset()
    assert any(seen) == symbolic


class Voxels(nn.Module):
    """Has a weight of five dimensions beside one of four."""

    def __init__(self, input_shape: list[int], outputs: int) -> None:
        super().__init__()
        self.flat, self.deep = nn.Conv2d(2, 4, 3), nn.Conv3d(2, 4, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.flat(images)


def test_weights_of_four_dimensions_alone_are_brought_into_the_order_of_images() -> None:
    """On a device that is not the CPU, also where others have five; `meta` stands for a GPU."""
    optimizer = ("optimizer=sgd", "optimizer.fused=false")
    settings: Any = OmegaConf.to_container(config.resolve(compose(*optimizer)))
    settings["model"] = {"_target_": f"{__name__}.Voxels", "input_shape": [1], "outputs": 1}
    model: Any = assemble.build_training_state(settings, torch.device("meta")).model
    assert model.flat.weight.stride()[1] == 1
    assert model.deep.weight.stride()[1] > 1, "negative control"
    with pytest.raises(RuntimeError, match="rank 4"):  # negative control
        model.to(memory_format=torch.channels_last)
