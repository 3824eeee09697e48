"""The example models: output shapes, and the claims of their comments."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from project.models.cnn import CNN
from project.models.gpt import GPT
from project.models.recurrent import Recurrent

Shape = tuple[int, ...]
IMAGE = (1, 28, 28)
SEQUENCE = (20, 2)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def cnn(shape: Shape = IMAGE, dropout: float = 0.0) -> CNN:
    return CNN(shape, outputs=3, channels=[4, 8], dropout=dropout)


def recurrent(
    shape: Shape = SEQUENCE, cell: str = "lstm", dropout: float = 0.0
) -> Recurrent:
    return Recurrent(shape, 3, cell, hidden_size=8, layers=2, dropout=dropout)


def gpt(context: int = 8, dropout: float = 0.0) -> GPT:
    return GPT(
        vocabulary=16, context=context, width=16, layers=2, heads=2, dropout=dropout
    )


def inputs(shape: Shape) -> Tensor:
    return torch.randn(5, *shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("model", "shape"),
    [(cnn, shape) for shape in (IMAGE, (3, 32, 32), (1, 9, 13), (2, 7, 5))]
    + [
        (recurrent, SEQUENCE),
        (recurrent, IMAGE),
        (partial(recurrent, cell="rnn"), SEQUENCE),
    ],
)
def test_outputs_are_float32(model: Callable[[Shape], nn.Module], shape: Shape) -> None:
    """The shape is (B, outputs) for inputs of any size, and each parameter has a
    gradient."""
    made = model(shape)
    result = made(inputs(shape))
    assert result.shape == (5, 3)
    assert result.dtype == torch.float32
    result.sum().backward()
    assert all(parameter.grad is not None for parameter in made.parameters())


def test_an_image_is_a_sequence_of_its_rows() -> None:
    """A step is a row of all channels; negative control: the rows in reverse order."""
    images = inputs((2, 6, 4))
    model = recurrent((2, 6, 4))
    rows = torch.stack([images[:, :, row].flatten(1) for row in range(6)], dim=1)
    assert torch.equal(model(images), model(rows))
    assert not torch.equal(model(images), model(rows.flip(1)))


def test_dropout_draws_in_training_alone() -> None:
    """The recurrent layers have no built-in dropout."""
    assert all(layer.dropout == 0 for layer in recurrent(dropout=0.5).layers)
    models = [
        (recurrent(dropout=0.5), inputs(SEQUENCE)),
        (cnn(dropout=0.5), inputs(IMAGE)),
    ]
    for model, x in [*models, (gpt(dropout=0.5), torch.arange(6)[None])]:
        assert not torch.equal(model(x), model(x))
        model.eval()
        assert torch.equal(model(x), model(x))


def test_an_lstm_starts_with_gates_for_the_length_of_the_sequence() -> None:
    """Forget gates hold for 1 to T - 1 steps, input gates have -bias; others are
    PyTorch's."""
    layer = Recurrent((100, 2), 3, "lstm", 500, 1, 0.0).layers[0]
    gates = (layer.bias_ih_l0 + layer.bias_hh_l0).detach().chunk(4)
    steps = gates[1].exp()
    assert torch.equal(gates[0], -gates[1])
    assert 1 <= steps.min() < 3
    assert 97 < steps.max() <= 99
    assert all(gate.abs().max() < 2 / math.sqrt(500) for gate in gates[2:])


def test_no_token_sees_a_later_one() -> None:
    """Logits do not depend on later tokens; negative control: those at changed tokens
    differ."""
    model = gpt()
    tokens = torch.arange(6)[None]
    changed = tokens.clone()
    changed[0, 3:] += 1
    before = model(tokens)
    after = model(changed)
    torch.testing.assert_close(before[:, :3], after[:, :3])
    assert not torch.equal(before[:, 3:], after[:, 3:])


def test_generating_continues_the_tokens_beyond_the_context() -> None:
    """At temperature 0 the result is always the same; above 0 it varies."""
    model = gpt(context=4)
    tokens = torch.arange(3)[None]
    likeliest = model.generate(tokens, steps=9)
    assert likeliest.shape == (1, 12)
    assert torch.equal(likeliest[:, :3], tokens)
    assert torch.equal(likeliest, model.generate(tokens, steps=9))
    drawn = [model.generate(tokens, steps=9, temperature=10.0) for _ in range(2)]
    assert not torch.equal(*drawn)
