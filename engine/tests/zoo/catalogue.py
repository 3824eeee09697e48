"""The zoo's models, layers and transforms, as settings of an experiment; see the YAML files."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.zoo.parts import CLASSES

Settings = dict[str, Any]
_HERE = Path(__file__).parent
_PARTS = "tests.zoo.parts"
IMAGE = (3, 32, 32)
SMALL_IMAGE = (3, 16, 16)


@dataclass(frozen=True)
class Case:
    """What is trained, on what.

    Attributes:
        refused: how the one line begins by which the run must end. Empty: it must train.
    """

    name: str
    model: Settings
    samples: Settings
    task: Settings = field(default_factory=lambda: {"name": "classification"})
    collate: str | None = None
    refused: str = ""

    @property
    def group(self) -> str:
        """Return the library or list that it is from."""
        return self.name.split("/")[0]


def read(name: str) -> Any:
    """Read one of the zoo's YAML files."""
    return yaml.safe_load((_HERE / f"{name}.yaml").read_text())


def cases() -> list[Case]:
    """Return all of them."""
    return [*_models(), *_layers(), *_transforms(), *_habits()]


def _models() -> Iterator[Case]:
    listed = read("models")
    for library, build in (("torchvision", _torchvision), ("timm", _timm)):
        for name, given in listed[library].items():
            arguments = dict(given)
            edge = arguments.pop("size", IMAGE[1])
            model = build(name, arguments) | {"num_classes": CLASSES}
            yield Case(f"{library}/{name}", model, {"shape": [3, edge, edge], "kind": "noisy"})
    for name, given in listed["transformers"].items():
        samples = (
            {"shape": list(IMAGE), "kind": "noisy"}
            if "Image" in name
            else {"shape": [12], "kind": "tokens"}
        )
        yield Case(f"transformers/{name}", _transformers(name, dict(given)), samples)


def _torchvision(name: str, arguments: Settings) -> Settings:
    return {"_target_": f"torchvision.models.{name}", **arguments}


def _timm(name: str, arguments: Settings) -> Settings:
    if "_target_" in arguments:
        return arguments
    return {"_target_": "timm.create_model", "model_name": name, **arguments}


def _transformers(name: str, arguments: Settings) -> Settings:
    target = f"transformers.{arguments.pop('config')}"
    config = {"_target_": target, "num_labels": CLASSES, **arguments}
    model = {"_target_": f"transformers.{name}", "config": config}
    return {"_target_": f"{_PARTS}.Logits", "model": model}


def around(layer: Settings, shape: list[int], inputs: int = 1, outputs: int = CLASSES) -> Settings:
    """Return the settings of a network around a layer."""
    return {
        "_target_": f"{_PARTS}.Around",
        "layer": layer,
        "shape": shape,
        "inputs": inputs,
        "outputs": outputs,
    }


def _layers() -> Iterator[Case]:
    listed = read("layers")
    for name, given in listed["layers"].items():
        arguments = dict(given)
        shape, inputs = arguments.pop("shape"), arguments.pop("inputs", 1)
        model = around(_layer(name, arguments), shape, inputs)
        yield Case(f"torch.nn/{name}", model, {"shape": shape})
    for name, given in listed["embeddings"].items():
        model = {"_target_": f"{_PARTS}.Embedded", "layer": _layer(name, given)}
        model |= {"length": 8, "outputs": CLASSES}
        yield Case(f"torch.nn/{name}", model, {"shape": [8], "kind": "tokens"})
    for name, given in listed["unpools"].items():
        pool = _layer(given["pool"], {"kernel_size": 2, "return_indices": True})
        layer = {"_target_": f"{_PARTS}.PoolAndUnpool", "pool": pool}
        layer["unpool"] = _layer(name, {"kernel_size": 2})
        # It would be refused in the constructor already.
        model = around(layer, given["shape"]) | {"features": math.prod(given["shape"])}
        operation = f"max_unpooling{3 if name.endswith('3d') else 2}d_forward_out"
        refused = f"{operation}: expected an operation with a deterministic implementation"
        yield Case(f"torch.nn/{name}", model, {"shape": given["shape"]}, refused=refused)
    for name, given in listed["with_targets"].items():
        model = {"_target_": f"{_PARTS}.LossInside", "layer": _layer(name, given), "shape": [12]}
        task = {"name": "loss", "_target_": f"{_PARTS}.TheOutput"}
        yield Case(f"torch.nn/{name}", model, {"shape": [12], "kind": "with_target"}, task)
    yield from _losses(listed["losses"])


def _losses(listed: Mapping[str, Settings]) -> Iterator[Case]:
    for name, given in listed.items():
        arguments = dict(given)
        outputs, targets = arguments.pop("outputs"), arguments.pop("targets")
        task = {"name": "loss", "_target_": f"{_PARTS}.ByLoss", "loss": _layer(name, arguments)}
        task |= {"outputs": outputs, "targets": targets}
        count = 5 * CLASSES if outputs == "log_probs_in_time" else CLASSES
        layer = _layer("Linear", {"in_features": 12, "out_features": 12})
        yield Case(f"torch.nn/{name}", around(layer, [12], 1, count), {"shape": [12]}, task)


def _layer(name: str, arguments: Settings) -> Settings:
    return {"_target_": f"torch.nn.{name}", **arguments}


def _transforms() -> Iterator[Case]:
    listed = read("transforms")
    flatten = _layer("Flatten", {})
    model = around(flatten, list(SMALL_IMAGE))
    packages = {"v1": "torchvision.transforms", "v2": "torchvision.transforms.v2"}
    mixed = {"name": "mixed", "_target_": f"{_PARTS}.Mixed"}
    for version, package in packages.items():
        for name, given in listed[version].items():
            arguments = dict(given)
            samples: Settings = {
                "shape": list(SMALL_IMAGE),
                "kind": arguments.pop("takes", "pil" if version == "v1" else "uint8"),
            }
            mixing = arguments.pop("collate", None)
            if mixing:
                collate = f"{_PARTS}.{mixing}"
                yield Case(f"transforms.{version}/{name}", model, samples, mixed, collate)
                continue
            samples["transform"] = {"_target_": f"{package}.{name}", **arguments}
            yield Case(f"transforms.{version}/{name}", model, samples)


def _habits() -> Iterator[Case]:
    listed = read("habits")
    samples = {"shape": list(IMAGE), "kind": "noisy"}
    for name, model in listed["models"].items():
        refused = listed["refused"].get(name, "")
        yield Case(f"habits/{name}", model, samples, refused=refused)
    task = {"name": "all", "_target_": "tests.zoo.habits.OfAllOutputs"}
    for name, model in listed["several_outputs"].items():
        size = {"shape": [3, 64, 64], "kind": "noisy"} if "googlenet" in name else samples
        yield Case(f"habits/several_outputs.{name}", model, size, task)
