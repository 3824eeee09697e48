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
Model = Callable[[Any], Any]
PROGRAM_DIFFERS = "the program computes something else; export the weights by --state-dict"
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
    two = inputs_of(source, 2)
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
            loaded = save_program(model, two, out)
            lines = [
                "import torch",
                f"model = torch.export.load({str(out)!r}).module()",
                f"outputs = model(inputs)  # {described(two)}",
            ]
        why_not = WEIGHTS_DIFFER if asked["state_dict"] else PROGRAM_DIFFERS
        same, result = compare(model, loaded, source, settings["data"]["eval_batch_size"], why_not)
    print(printable(f"{path} (step {step}) to {out}"))
    print(result)
    print("\nTo load it:\n")
    print(*(f"    {line}" for line in lines), sep="\n")
    return 0 if same else 1


def save_program(model: nn.Module, inputs: Any, out: Path) -> Model:
    """Write a model as a program of `torch.export`, and return what is read back.

    Batches may have any size, unless the model's code fixes it.

    Raises:
        InputError: PyTorch cannot capture the model.
    """
    any_size = map_tensors(lambda _: {0: torch.export.Dim.AUTO}, inputs)
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # where torch prints the whole graph
            program = torch.export.export(model, (inputs,), dynamic_shapes=(any_size,))
        buffer = io.BytesIO()
        torch.export.save(program, buffer)
    except Exception as error:  # whatever somebody's forward provokes
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
        raise InputError(
            f"model: expected one that torch.export can capture, got {type(model).__name__} with "
            f"{reason}; export its weights by --state-dict"
        ) from None
    places.write("--to", out, buffer.getvalue())
    return torch.export.load(out).module()


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
    model: Model, loaded: Model, source: Source, samples: int, why_not: str
) -> tuple[bool, str]:
    """Return whether two models have outputs of the same bits, and that in a line with the reason.

    Each is called with the same seed of the global generators, of which some models draw.

    Args:
        why_not: the reason, and what to do, where the model itself has the same outputs again.
    """
    inputs = inputs_of(source, samples)
    outputs, again = (outputs_of(model, inputs, seed) for seed in (0, 1))
    draws = not equal(outputs, again)
    count = f"{min(samples, len(source)):,} samples"
    if equal(outputs, outputs_of(loaded, inputs, 0)):
        seeded = "; it draws random numbers in evaluation, here from the same seed" if draws else ""
        return True, f"the same bits as the model for {count}{seeded}"
    reason = (
        "the model draws random numbers in evaluation, so its own outputs differ from call to call"
        if draws
        else why_not
    )
    return False, f"not the same bits as the model for {count}: {reason}"


def outputs_of(model: Model, inputs: Any, seed: int) -> Sequence[Tensor]:
    """Return what a model returns, in tensors, with the global generators seeded."""
    rng.seed_globals(rng.key(seed, "dropout", 0, 0))
    return tensors_of(model(inputs))


def equal(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Return whether tensors have the same bits and dtypes."""
    pairs = zip(some, others, strict=True)
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)


def described(inputs: Any) -> str:
    """Return type and shape of inputs, for a comment."""
    return ", ".join(
        f"{str(tensor.dtype).removeprefix('torch.')} (B, {', '.join(map(str, tensor.shape[1:]))})"
        for tensor in tensors_of(inputs)
    )


if __name__ == "__main__":
    sys.exit(exit_status(main))
