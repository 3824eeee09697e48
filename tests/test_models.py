"""The example models: shapes, numbers of parameters, and what their comments claim."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from project.models.cnn import CNN
from project.models.gpt import GPT
from project.models.recurrent import Recurrent

IMAGE, SEQUENCE = (1, 28, 28), (20, 2)


def cnn(dropout: float = 0.0) -> CNN:
    torch.manual_seed(0)
    return CNN(IMAGE, outputs=10, channels=[4, 8], dropout=dropout)


def recurrent(
    cell: str = "lstm", shape: tuple[int, ...] = SEQUENCE, layers: int = 1, dropout: float = 0.0
) -> Recurrent:
    torch.manual_seed(0)
    return Recurrent(shape, 3, cell, 8, layers, dropout)


def gpt(context: int = 8, dropout: float = 0.0) -> GPT:
    torch.manual_seed(0)
    return GPT(vocabulary=16, context=context, width=16, layers=2, heads=2, dropout=dropout)


def inputs(shape: tuple[int, ...], batch_size: int = 5) -> Tensor:
    return torch.randn(batch_size, *shape, generator=torch.Generator().manual_seed(1))


CASES = [
    pytest.param(cnn, IMAGE, 10, id="cnn"),
    pytest.param(lambda: recurrent("rnn"), SEQUENCE, 3, id="rnn"),
    pytest.param(lambda: recurrent("lstm", layers=2, dropout=0.5), SEQUENCE, 3, id="lstm"),
    pytest.param(lambda: recurrent("lstm", IMAGE), IMAGE, 3, id="lstm-on-images"),
]


@pytest.mark.parametrize(("make", "shape", "outputs"), CASES)
def test_outputs_are_float32(
    make: Callable[[], nn.Module], shape: tuple[int, ...], outputs: int
) -> None:
    """(B, outputs), with a gradient for each parameter."""
    model = make()
    result = model(inputs(shape))
    assert result.shape == (5, outputs)
    assert result.dtype == torch.float32
    result.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("shape", [IMAGE, (3, 32, 32), (1, 9, 13), (2, 5, 5)])
def test_a_cnn_fits_images_of_any_size(shape: tuple[int, int, int]) -> None:
    assert CNN(shape, 10, [4, 8], 0.0)(inputs(shape)).shape == (5, 10)


@pytest.mark.parametrize(
    ("model", "count"),
    [
        (CNN(IMAGE, 10, [16, 32, 64], 0.0), 26 * 16 + 145 * 32 + 289 * 64 + 5770),
        (Recurrent((100, 2), 1, "lstm", 64, 1, 0.0), 4 * 64 * (2 + 64 + 2) + 65),
        (Recurrent((100, 2), 1, "rnn", 64, 1, 0.0), 64 * (2 + 64 + 2) + 65),
        (Recurrent(IMAGE, 10, "lstm", 64, 2, 0.0), 4 * 64 * (28 + 64 + 2 + 64 + 64 + 2) + 650),
    ],
)
def test_numbers_of_parameters_are_the_textbook_s(model: nn.Module, count: int) -> None:
    assert sum(parameter.numel() for parameter in model.parameters()) == count


def test_an_image_is_a_sequence_of_its_rows() -> None:
    """All channels of a row at once; negative control: the rows in another order."""
    images = inputs((2, 6, 4))
    model = recurrent(shape=(2, 6, 4))
    rows = torch.stack([images[:, :, row].flatten(1) for row in range(6)], dim=1)
    assert torch.equal(model(images), model(rows))
    assert not torch.equal(model(images), model(rows.flip(1)))


def test_dropout_draws_in_training_alone() -> None:
    """And recurrent layers have none inside."""
    assert all(layer.dropout == 0 for layer in recurrent(layers=2, dropout=0.5).layers)
    models = [(recurrent(layers=2, dropout=0.5), inputs(SEQUENCE)), (cnn(0.5), inputs(IMAGE))]
    for model, x in [*models, (gpt(dropout=0.5), torch.arange(6)[None])]:
        assert not torch.equal(model(x), model(x))
        model.eval()
        assert torch.equal(model(x), model(x))


def test_an_lstm_starts_with_gates_for_the_length_of_the_sequence() -> None:
    """Forget gates open for 1 to T - 1 steps, input gates closed as much; others as in PyTorch."""
    layer = Recurrent((100, 2), 3, "lstm", 500, 1, 0.0).layers[0]
    gates = (layer.bias_ih_l0 + layer.bias_hh_l0).detach().chunk(4)
    steps = gates[1].exp()
    assert torch.equal(gates[0], -gates[1])
    assert 1 <= steps.min() < 3
    assert 97 < steps.max() <= 99
    assert all(gate.abs().max() < 2 / math.sqrt(500) for gate in gates[2:])


def test_no_token_sees_a_later_one() -> None:
    """Logits stay when later tokens change; negative control: those of the changed ones do not."""
    model, tokens = gpt(), torch.arange(6)[None]
    changed = tokens.clone()
    changed[0, 3:] += 1
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :3], after[:, :3])
    assert not torch.equal(before[:, 3:], after[:, 3:])


def test_generating_continues_the_tokens_beyond_the_context() -> None:
    """Without temperature the likeliest token, always the same; with one they vary."""
    model, tokens = gpt(context=4), torch.arange(3)[None]
    likeliest = model.generate(tokens, steps=9)
    assert likeliest.shape == (1, 12)
    assert torch.equal(likeliest[:, :3], tokens)
    assert torch.equal(likeliest, model.generate(tokens, steps=9))
    drawn = [model.generate(tokens, steps=9, temperature=10.0) for _ in range(2)]
    assert not torch.equal(*drawn)
