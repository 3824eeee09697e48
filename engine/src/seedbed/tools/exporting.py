"""Export the model of a run for inference elsewhere: `python -m seedbed.tools.exporting FOLDER`."""

import contextlib
import io
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import hydra
import numpy as np
import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

from seedbed import rng
from seedbed.data.positions import Position
from seedbed.data.source import Source
from seedbed.data.tensors import map_tensors, tensors_of
from seedbed.errors import InputError, exit_status, printable
from seedbed.tools import places, request, weights
from seedbed.worker import assemble

# Keys of `model` that describe it and are no arguments of its class; see `config.build`.
_DESCRIPTIONS = ("name", "accepts", "requires")
_WITH_FAST_PATH = (nn.TransformerEncoderLayer, nn.MultiheadAttention)
Model = Callable[[Any], Any]
PROGRAM_DIFFERS = "the program computes something else; export the weights by --state-dict"
FAST_PATH = (
    "in evaluation the model takes PyTorch's fast path of attention (torch.backends.mha), which a "
    "program does not have; without it their bits are the same; --state-dict keeps it"
)
WEIGHTS_DIFFER = (
    "the model uses values that state_dict() lacks; register them as buffers, or export without "
    "--state-dict"
)


def main() -> int:
    """Export what the request of this process asks for, and print the lines that load it."""
    settings, asked = request.read()
    path, out = Path(asked["run"], "checkpoints", f"{asked['checkpoint']}.pt"), Path(asked["to"])
    assemble.prepare_backends(settings["determinism"])
    source = weights.source_of(settings, "validation")
    training, step = weights.load(settings, path, source)
    model = training.model.eval()
    two, samples = inputs_of(source, 2), settings["data"]["eval_batch_size"]
    with torch.no_grad():
        if asked["state_dict"]:
            recipe = str(places.yaml_of(out))
            loaded = save_state_dict(model, settings["model"], out)
            lines = [
                "import hydra, omegaconf, torch",
                f"model = hydra.utils.instantiate(omegaconf.OmegaConf.load({recipe!r}))",
                f"model.load_state_dict(torch.load({str(out)!r}, weights_only=True)); model.eval()",
            ]
        else:
            loaded = save_program(model, two, inputs_of(source, samples), out)
            lines = [
                "import torch",
                f"model = torch.export.load({str(out)!r}).module()",
                f"outputs = model(inputs)  # {described(two)}",
            ]
        why_not = WEIGHTS_DIFFER if asked["state_dict"] else PROGRAM_DIFFERS
        same, result = compare(model, loaded, source, samples, why_not)
    print(printable(f"{path} (step {step}) to {out}"))
    print(result)
    print("\nTo load it:\n")
    print(*(f"    {line}" for line in lines), sep="\n")
    return 0 if same else 1


def save_program(model: nn.Module, two: Any, inputs: Any, out: Path) -> Model:
    """Write a model as a program of `torch.export` for batches of any size; return it as read.

    Args:
        two: inputs of two samples, by which the model is captured.
        inputs: those of more samples, which the program has to accept.

    Raises:
        InputError: PyTorch cannot capture the model, or not for batches of any size.
    """
    any_size = map_tensors(lambda _: {0: torch.export.Dim.AUTO}, two)
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # where torch prints the whole graph
            program = torch.export.export(model, (two,), dynamic_shapes=(any_size,))
        buffer = io.BytesIO()
        torch.export.save(program, buffer)
    except Exception as error:  # whatever somebody's forward provokes
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
        raise InputError(
            f"model: expected one that torch.export can capture, got {type(model).__name__} with "
            f"{reason}; export its weights by --state-dict"
        ) from None
    loaded: Model = torch.export.load(io.BytesIO(buffer.getvalue())).module()
    require_accepted(loaded, two, inputs)
    places.write("--to", out, buffer.getvalue())
    return loaded


def require_accepted(program: Model, two: Any, inputs: Any) -> None:
    """Raise InputError if a program that was captured with two samples refuses others."""
    try:
        program(inputs)
    except Exception as error:  # guards fail as assertions, operations in their own ways
        reason = " ".join(str(error).split())[:160]
        shapes = [[tuple(t.shape[1:]) for t in tensors_of(batch)] for batch in (two, inputs)]
        if shapes[0] != shapes[1]:
            raise InputError(
                "data: expected batches of samples of one shape, for which a program is captured, "
                f"got {shapes[0]} and {shapes[1]}; export the weights by --state-dict"
            ) from None
        raise InputError(
            "model: expected code for batches of any size, got code that fixes the size of a batch "
            f"({reason}); write x.shape[0] instead of len(x), or export the weights by --state-dict"
        ) from None


def save_state_dict(model: nn.Module, spec: Mapping[str, Any], out: Path) -> Model:
    """Write the weights of a model, and the YAML from which Hydra builds it; return it as read."""
    kept = {key: value for key, value in spec.items() if key not in _DESCRIPTIONS}
    recipe = OmegaConf.create({**kept, "_convert_": "all"})  # lists as lists, as in training
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    places.write("--to", places.yaml_of(out), OmegaConf.to_yaml(recipe))
    places.write("--to", out, buffer.getvalue())
    loaded: nn.Module = hydra.utils.instantiate(OmegaConf.load(places.yaml_of(out)))
    loaded.load_state_dict(torch.load(out, weights_only=True))
    return loaded.eval()


def inputs_of(source: Source, samples: int) -> Any:
    """Return the model's inputs for the first samples of a data set, as they are loaded."""
    return source[Position(0, np.arange(min(samples, len(source))))].inputs


def compare(
    model: nn.Module, loaded: Model, source: Source, samples: int, why_not: str
) -> tuple[bool, str]:
    """Return whether two models have outputs of the same bits, and that in a line with the reason.

    Each is called with the same seed of the global generators, of which some models draw.

    Args:
        why_not: the reason, and what to do, where the model itself has the same outputs again.

    Returns:
        The line has the greatest difference too, unless the model draws random numbers.
    """
    inputs = inputs_of(source, samples)
    outputs, again = (outputs_of(model, inputs, seed) for seed in (0, 1))
    draws = not equal(outputs, again)
    count = f"{min(samples, len(source)):,} samples"
    found = outputs_of(loaded, inputs, 0)
    if equal(outputs, found):
        seeded = "; it draws random numbers in evaluation, here from the same seed" if draws else ""
        return True, f"the same bits as the model for {count}{seeded}"
    line = f"not the same bits as the model for {count}"
    if draws:
        own = "in evaluation, so its own outputs differ from call to call"
        return False, f"{line}: the model draws random numbers {own}"
    reason = FAST_PATH if is_fast_path(model, inputs, found) else why_not
    return False, f"{line}{distance(outputs, found)}: {reason}"


def is_fast_path(model: nn.Module, inputs: Any, found: Sequence[Tensor]) -> bool:
    """Return whether a model with attention has some outputs where it takes no fast path.

    PyTorch takes that for inference only: not where gradients are asked for.
    """
    has_attention = any(isinstance(module, _WITH_FAST_PATH) for module in model.modules())
    with torch.enable_grad():
        return has_attention and equal(outputs_of(model, inputs, 0), found)


def distance(some: Sequence[Tensor], others: Sequence[Tensor]) -> str:
    """Return the greatest absolute difference as text; none if shapes or dtypes differ."""
    pairs = list(zip(some, others, strict=False))
    is_alike = all(a.dtype == b.dtype and a.shape == b.shape for a, b in pairs)
    if len(some) != len(others) or not is_alike:
        return ""
    wide = (torch.complex128 if a.is_complex() else torch.float64 for a, _ in pairs)
    apart = [(a.to(t) - b.to(t)).abs() for (a, b), t in zip(pairs, wide, strict=True)]
    greatest = max((float(each.max()) for each in apart if each.numel()), default=0.0)
    return f", by at most {greatest:.2g}"


def outputs_of(model: Model, inputs: Any, seed: int) -> Sequence[Tensor]:
    """Return what a model returns, in tensors, with the global generators seeded."""
    rng.seed_globals(rng.key(seed, "dropout", 0, 0))
    return [tensor.detach() for tensor in tensors_of(model(inputs))]


def equal(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Return whether tensors have the same bits and dtypes."""
    pairs = zip(some, others, strict=False)
    return len(some) == len(others) and all(
        a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs
    )


def described(inputs: Any) -> str:
    """Return type and shape of inputs, for a comment."""
    found = [(str(t.dtype).removeprefix("torch."), ["B", *t.shape[1:]]) for t in tensors_of(inputs)]
    shapes = ", ".join(f"{dtype} ({', '.join(map(str, shape))})" for dtype, shape in found)
    return f"{shapes}; B is any size"


if __name__ == "__main__":
    sys.exit(exit_status(main))
