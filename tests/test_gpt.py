"""Sums and texts as bytes, and a GPT that sees no later token."""

from pathlib import Path

import pytest
import torch

from project.data.sums import NO_TARGET, PADDING, Sums, Text, decode, encode, pad, text_or_sums
from project.models.gpt import GPT
from seedbed.errors import InputError


def gpt(context: int = 8, dropout: float = 0.0) -> GPT:
    torch.manual_seed(0)
    return GPT(vocabulary=16, context=context, width=16, layers=2, heads=2, dropout=dropout)


def written(split: str, seed: int = 0) -> set[str]:
    sums = Sums(split, seed, digits=1)
    return {decode(sums[i][0]) for i in range(len(sums))}


def test_every_sum_is_in_one_split_and_right() -> None:
    """80, 10 and 10 of the 100 sums of two digits, none in two splits."""
    splits = [written(split) for split in ("train", "validation", "test")]
    assert list(map(len, splits)) == [80, 10, 10]
    everything = set.union(*splits)
    assert everything == {f"{a}+{b}={a + b}" for a in range(10) for b in range(10)}


def test_the_split_belongs_to_its_seed() -> None:
    assert written("test") == written("test")
    assert written("test") != written("test", seed=1)


def test_only_the_answer_is_to_be_guessed() -> None:
    """The targets are the answer and the end of the line."""
    inputs, targets = Sums("train", 0, 2)[0]
    question, answer = decode(inputs).split("=")
    assert decode(targets[targets != NO_TARGET]) == f"{answer}\n"
    assert (targets[: len(question)] == NO_TARGET).all()


def test_a_batch_is_as_long_as_its_longest_sequence() -> None:
    samples = [(encode(text), encode(text)) for text in ("abc", "a")]
    inputs, targets = pad(samples)
    assert inputs.tolist() == [[97, 98, 99], [97, PADDING, PADDING]]
    assert targets[1].tolist() == [97, NO_TARGET, NO_TARGET]


def test_a_text_is_cut_into_pieces_each_followed_by_the_next(tmp_path: Path) -> None:
    """The splits are the text, in order, and each byte's target is the next one."""
    file = tmp_path / "text.txt"
    file.write_text("abcdefghij" * 10 + "k")
    splits = [Text(split, str(file), length=5) for split in ("train", "validation", "test")]
    assert list(map(len, splits)) == [16, 2, 2]
    samples = [split[i] for split in splits for i in range(len(split))]
    assert decode(torch.cat([inputs for inputs, _ in samples])) == "abcdefghij" * 10
    assert decode(torch.cat([targets for _, targets in samples])) == "bcdefghija" * 9 + "bcdefghijk"
    assert next(iter(splits[0].sha256)) == str(file)


def test_a_file_goes_before_the_sums(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a" * 60)
    assert isinstance(text_or_sums("train", 0, 2, str(tmp_path / "text.txt"), 5), Text)
    assert isinstance(text_or_sums("train", 0, 2, None, 5), Sums)


@pytest.mark.parametrize("content", [None, "short"])
def test_a_file_that_is_none_is_refused(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "text.txt"
    if content is not None:
        file.write_text(content)
    with pytest.raises(InputError, match=r"^data\.file: expected .*, got .*; "):
        Text("train", str(file), length=5)


@pytest.mark.parametrize("digits", [0, 4, 2.0])
def test_digits_that_cannot_be_are_refused(digits: int) -> None:
    with pytest.raises(InputError, match=r"^data\.digits: expected an integer from 1 to 3"):
        Sums("train", 0, digits)


def test_no_token_sees_a_later_one() -> None:
    """Logits up to a token stay when the tokens after it change; twin: its own logits change."""
    model = gpt()
    tokens = torch.arange(6)[None]
    changed = tokens.clone()
    changed[0, 3:] += 1
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :3], after[:, :3])
    assert not torch.equal(before[:, 3:], after[:, 3:])


def test_dropout_draws_in_training_alone() -> None:
    model, tokens = gpt(dropout=0.5), torch.arange(6)[None]
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))


def test_generating_continues_the_tokens_beyond_the_context() -> None:
    """Without temperature the likeliest token, always the same; with one they vary."""
    model, tokens = gpt(context=4), torch.arange(3)[None]
    likeliest = model.generate(tokens, steps=9)
    assert likeliest.shape == (1, 12)
    assert torch.equal(likeliest[:, :3], tokens)
    assert torch.equal(likeliest, model.generate(tokens, steps=9))
    drawn = [model.generate(tokens, steps=9, temperature=10.0) for _ in range(2)]
    assert not torch.equal(*drawn)


def test_a_sequence_longer_than_the_context_is_refused() -> None:
    with pytest.raises(InputError, match=r"^model\.context: expected at least 9, .* got 8;"):
        gpt()(torch.zeros(1, 9, dtype=torch.int64))


def test_a_width_that_heads_do_not_divide_is_refused() -> None:
    with pytest.raises(InputError, match=r"^model\.width: expected a multiple of model\.heads=3"):
        GPT(vocabulary=16, context=8, width=16, layers=1, heads=3, dropout=0.0)
