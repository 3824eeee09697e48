"""Models, layers and transforms of other libraries keep their bits: `make test-zoo`."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import DictConfig, OmegaConf

from seedbed import config, record, testing
from seedbed.config.compose import compose
from seedbed.weights import compare_checkpoints
from tests import running, tiny
from tests.ways import require_same_bits
from tests.zoo.parts import CLASSES

pytestmark = pytest.mark.zoo

Settings = dict[str, Any]
Case = tuple[str, Settings, Settings]  # a name, its model, its samples
PARTS = "tests.zoo.parts"
IMAGES = {"shape": [3, 32, 32], "kind": "noisy"}
TOKENS = {"shape": [12], "kind": "tokens"}
SHORT = ("optimizer=sgd", "optimizer.lr=0.01", "schedule=constant")


def read(name: str) -> Any:
    return yaml.safe_load(Path(__file__).with_name(f"{name}.yaml").read_text())


def of_torch(name: str, given: Settings) -> Settings:
    return {"_target_": f"torch.nn.{name}", **given}


def models() -> Iterator[Case]:
    listed = read("models")
    for library in ("torchvision", "timm"):
        create = {"_target_": "timm.create_model"}
        for name, given in listed[library].items():
            edge = given.pop("size", 32)
            target = {"_target_": f"torchvision.models.{name}"}
            if library == "timm" and "_target_" not in given:
                target = create | {"model_name": name}
            samples = IMAGES | {"shape": [3, edge, edge]}
            yield (
                f"{library}/{name}",
                target | given | {"num_classes": CLASSES},
                samples,
            )
    for name, given in listed["transformers"].items():
        config = {
            "_target_": f"transformers.{given.pop('config')}",
            "num_labels": CLASSES,
        }
        model = {"_target_": f"transformers.{name}", "config": config | given}
        samples = IMAGES if "Image" in name else TOKENS
        yield (
            f"transformers/{name}",
            {"_target_": f"{PARTS}.Logits", "model": model},
            samples,
        )
    for name, given in read("habits").items():
        yield f"habits/{name}", {"_target_": f"{PARTS}.{name}", **given}, IMAGES


def layers() -> Iterator[Case]:
    listed = read("layers")
    for name, given in listed["layers"].items():
        own = {"shape": given.pop("shape"), "inputs": given.pop("inputs", 1)}
        model = {"_target_": f"{PARTS}.Around", "layer": of_torch(name, given), **own}
        yield f"torch.nn/{name}", model, {"shape": own["shape"]}
    for name, given in listed["embeddings"].items():
        model = {
            "_target_": f"{PARTS}.Embedded",
            "layer": of_torch(name, given),
            "length": 12,
        }
        yield f"torch.nn/{name}", model, TOKENS
    for name, given in listed["unpools"].items():
        layer = {
            "_target_": f"{PARTS}.PoolAndUnpool",
            "pool": of_torch(
                given.pop("pool"), {"kernel_size": 2, "return_indices": True}
            ),
            "unpool": of_torch(name, {"kernel_size": 2}),
        }
        model = {"_target_": f"{PARTS}.Around", "layer": layer, "inputs": 1, **given}
        yield f"torch.nn/{name}", model, {"shape": given["shape"]}


def transforms() -> Iterator[Case]:
    listed = read("transforms")
    layer = of_torch("Flatten", {})
    flatten = {
        "_target_": f"{PARTS}.Around",
        "layer": layer,
        "shape": [3, 16, 16],
        "inputs": 1,
    }
    for version, package in (("v1", "transforms"), ("v2", "transforms.v2")):
        for name, given in listed[version].items():
            takes = given.pop("takes", "pil" if version == "v1" else "uint8")
            samples = {"shape": [3, 16, 16], "kind": takes}
            if "collate" in given:
                samples["collate"] = f"{PARTS}.{given['collate']}"
            else:
                samples["transform"] = {
                    "_target_": f"torchvision.{package}.{name}",
                    **given,
                }
            yield f"transforms.{version}/{name}", flatten, samples


CASES = {
    name: (model, samples)
    for name, model, samples in (*models(), *layers(), *transforms())
}
REFUSED = {
    name: model.pop("refused")
    for name, (model, _) in CASES.items()
    if "refused" in model
}


def configuration(shared: DictConfig, name: str, way: str) -> config.Settings:
    """Return the configuration that trains a case in one of the ways of
    `seedbed.testing`."""
    plain: dict[str, Any] = OmegaConf.to_container(shared)  # type: ignore[assignment]
    model, samples = CASES[name]
    data = {"_target_": f"{PARTS}.Samples", "samples": 16, **samples}
    collate = {"collate": data.pop("collate")} if "collate" in data else {}
    splits = dict.fromkeys(("train", "validation", "test"), data)
    sizes = {key: plain["data"][key] for key in ("batch_size", "eval_batch_size")}
    plain["model"] = {"name": "zoo", **model}
    plain["data"] = tiny.DATA | sizes | splits | collate
    return testing.short(OmegaConf.create(plain), testing.WAYS[way])


@pytest.fixture(scope="module")
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Train the cases of the selected tests in every way, each into PLACE/NAME/WAY."""
    items = [
        item for item in request.session.items if isinstance(item, pytest.Function)
    ]
    names = {
        item.callspec.params["name"] for item in items if "place" in item.fixturenames
    }
    place = tmp_path_factory.mktemp("zoo")
    shared = compose(*testing.SHORT, *SHORT)
    runs = {
        way: [
            (place / name / way, configuration(shared, name, way))
            for name in sorted(names)
        ]
        for way in testing.WAYS
    }
    testing.train_ways(runs)
    return place


@pytest.mark.parametrize("name", [name for name in CASES if name not in REFUSED])
def test_same_bits(place: Path, name: str) -> None:
    """Metrics are finite and every step changes the weights, so that equal bits are
    meaningful."""
    first = place / name / "first"
    summary = record.read_summary(first)
    assert summary["status"] == "finished", summary["error"]
    assert all(math.isfinite(value) for value in summary["metrics"].values())
    assert len({row["weights"] for row in record.read_fingerprints(first)}) == 4
    require_same_bits(place / name)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_keep_its_bits_is_refused_in_one_line(
    place: Path, name: str
) -> None:
    summary = record.read_summary(place / name / "first")
    assert summary["status"] == "failed"
    assert REFUSED[name] in summary["error"], summary["error"]
    assert "\n" not in summary["error"]


SHARED_BY_PROCESSES = (
    "transformers/BertForSequenceClassification",
    "transformers/LlamaForSequenceClassification",
    "transformers/GPT2ForSequenceClassification",
    "transformers/ViTForImageClassification",
)


@pytest.mark.parametrize("name", SHARED_BY_PROCESSES)
def test_sharded_on_two_processes_as_on_one(tmp_path: Path, name: str) -> None:
    """Weights, gradients and states are sharded by transformers' own repeated
    blocks."""
    model, samples = CASES[name]
    data = {"_target_": f"{PARTS}.Samples", "samples": 16, **samples}
    splits = dict.fromkeys(("train", "validation", "test"), data)
    words = (
        *tiny.overrides({"name": "zoo", **model}, tiny.DATA | splits),
        *("trainer.shards=2", "optimizer.fused=false", "fingerprint.every_steps=1"),
    )
    runs = [
        running.trained(tmp_path / "one", *words),
        running.trained(
            tmp_path / "two", *words, "trainer.processes=2", "trainer.sharding=full"
        ),
    ]
    for table in ("fingerprints.csv", "metrics.csv", "test_predictions.csv"):
        assert (runs[0] / table).read_text() == (runs[1] / table).read_text(), table
    assert compare_checkpoints(*runs) == ([], [])
