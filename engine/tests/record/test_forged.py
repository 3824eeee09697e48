"""Weights made to have the recorded fingerprints, which is easy: the hash is linear."""

import shutil
from fractions import Fraction
from pathlib import Path

import pytest
import torch

import seedbed
from seedbed import fingerprint, record, weights
from seedbed.errors import InputError
from seedbed.training import checkpoint, digests
from tests.made_up_runs import edit_summary
from tests.running import command, refusal

_MODULUS = 1 << 64


def reduced(basis: list[list[int]]) -> list[list[int]]:
    """Return a basis of the same lattice with short vectors (Lenstra, Lenstra & Lovász
    1982)."""
    basis = [list(vector) for vector in basis]

    def dot(a: list[Fraction], b: list[int]) -> Fraction:
        return sum((x * y for x, y in zip(a, b, strict=True)), Fraction(0))

    def orthogonal(count: int) -> list[list[Fraction]]:
        found: list[list[Fraction]] = []
        for vector in basis[:count]:
            rest = [Fraction(x) for x in vector]
            for other in found:
                factor = dot(other, vector) / sum(x * x for x in other)
                rest = [x - factor * y for x, y in zip(rest, other, strict=True)]
            found.append(rest)
        return found

    place = 1
    while place < len(basis):
        rests = orthogonal(place + 1)
        norms = [sum(x * x for x in rest) for rest in rests]
        for lower in range(place - 1, -1, -1):
            if factor := round(dot(rests[lower], basis[place]) / norms[lower]):
                pairs = zip(basis[place], basis[lower], strict=True)
                basis[place] = [x - factor * y for x, y in pairs]
        share = dot(rests[place - 1], basis[place]) / norms[place - 1]
        if norms[place] >= (Fraction(3, 4) - share**2) * norms[place - 1]:
            place += 1
        else:
            basis[place - 1], basis[place] = basis[place], basis[place - 1]
            place = max(place - 1, 1)
    return basis


def forge(path: Path) -> str:
    """Change eight weights in a checkpoint so that their fingerprint stays; return its
    SHA-256."""
    state = checkpoint.load(path)
    weights = [
        value for name, value in state["model"].items() if name not in state["buffers"]
    ]
    words = max(weights, key=torch.numel).view(torch.int32).view(-1)[:8]
    before = int(fingerprint.of_tensors(weights))
    coefficients = []
    for number in range(len(words)):
        words[number] += 1
        coefficients.append((int(fingerprint.of_tensors(weights)) - before) % _MODULUS)
        words[number] -= 1
    inverse = pow(coefficients[0], -1, _MODULUS)
    basis = [[_MODULUS, *[0] * 7]]
    for number, coefficient in enumerate(coefficients[1:], start=1):
        own = [int(number == place) for place in range(1, 8)]
        basis.append([-coefficient * inverse % _MODULUS, *own])
    changes = min(reduced(basis), key=lambda vector: max(map(abs, vector)))
    assert 0 < max(map(abs, changes)) < 1 << 12, "units in the last place"
    words += torch.tensor(changes, dtype=torch.int32)
    assert int(fingerprint.of_tensors(weights)) == before
    state[digests.WEIGHTS] = digests.of_weights(state)
    checkpoint.save(state, path)
    return str(state[digests.WEIGHTS])


def test_another_name_of_the_best_weights_is_noticed(
    quick_run: Path, tmp_path: Path
) -> None:
    """Of last.pt, which a resume compares best.pt with. Negative control: an earlier
    version's."""
    copy = Path(shutil.copytree(quick_run, tmp_path / "copy"))
    path = copy / "checkpoints" / "last.pt"
    for forged, lines in (("0" * 64, 1), (None, 0)):
        state = checkpoint.load(path)
        state["progress"]["best_sha256"] = forged
        checkpoint.save(state, path, keep_previous=False)
        found, _ = weights.compare_checkpoints(copy, quick_run)
        assert len(found) == lines, found


@pytest.mark.parametrize("name", ["best", "last"])
def test_weights_with_the_recorded_fingerprint_are_refused(
    name: str, quick_run: Path, tmp_path: Path
) -> None:
    """evaluate, load and resume compare the SHA-256; verify all bits, even if a forger
    repaired the summary as well. Negative control: without the summary's SHA-256,
    evaluate sees nothing."""
    copy = Path(shutil.copytree(quick_run, tmp_path / "copy"))
    forged = forge(copy / "checkpoints" / f"{name}.pt")
    words = ("scripts/evaluate.py", str(copy), "--checkpoint", name)
    message = (
        f"{name}.pt: expected the weights of step 12 whose SHA-256 is in summary.json"
    )
    assert message in refusal(command(*words))
    with pytest.raises(InputError, match=message):
        seedbed.load(copy, checkpoint=name)
    if name == "last":
        edit_summary(copy, status="interrupted")
        assert message in refusal(
            command("scripts/resume.py", str(copy), "--allow-changed")
        )
        edit_summary(copy, status="finished")
    known = record.read_summary(copy)["weights_sha256"]
    edit_summary(copy, weights_sha256=known | {name: forged})
    assert command(*words).returncode == 0
    done = command("scripts/verify.py", str(copy))
    assert done.returncode == 1, done.stderr
    assert f"checkpoints/{name}.pt: other state than in the replay" in done.stdout
    assert f"summary.json: weights_sha256.{name} is " in done.stdout
