"""The configuration and its command line: checks, building and trusting classes, job
names."""

import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import hydra
import pytest
import yaml
from omegaconf import DictConfig, OmegaConf

from seedbed import config
from seedbed.config import build, compose
from seedbed.config.compose import configuration
from seedbed.config.settings import Settings, Trainer
from seedbed.errors import InputError
from seedbed.sweeps import job
from tests.running import ROOT, composed

BASE = config.resolve(compose.compose())
RUN = Path("run")


def changed(key: str, value: Any) -> DictConfig:
    settings = deepcopy(BASE)
    OmegaConf.update(settings, key, value, merge=False, force_add=True)
    return settings


def test_a_seed_reaches_every_stream() -> None:
    """0 and the largest seed are kept; a null seed is drawn, recorded and used by all
    streams."""
    words = ("seed=0", f"seed={2**63 - 1}", "seed=null", "seed=null")
    found = [configuration(each) for each in words]
    assert [settings.seed for settings in found[:2]] == [0, 2**63 - 1]
    assert found[2].seed != found[3].seed
    for settings in found:
        assert settings.seed == settings.seeds.init == settings.seeds.dropout


@pytest.mark.parametrize(
    "change",
    [
        # ranges
        *("seed=-1", "seed=9223372036854775808", "seeds.init=-1", "data.batch_size=0"),
        *("data.num_workers=1000000", "determinism.threads=0", "optimizer.lr=-1"),
        *("optimizer.lr=.nan", "optimizer.lr=.inf", "schedule.warmup_fraction=1.5"),
        *(
            "trainer.shards=3",
            "fingerprint.every_steps=0",
            f"trainer.max_steps={2**63}",
        ),
        # types
        *(
            "seed=abc",
            "seed=1.5",
            "seed=true",
            "seed=[1, 2]",
            "seeds.order=null",
            "files=x",
        ),
        *("trainer.compile=maybe", "trainer.monitor=[a]", "data.task=x"),
        *("determinism.env=null", "determinism.cudnn=x", "determinism.env.X=[1]"),
        *("trainer=5", "model=null", "data=[1]", "schedule=1"),
        # choices
        *("data.start_method=thread", "trainer.device='cuda:'", "trainer.mode=best"),
        *(
            "determinism.on_nondeterministic=panic",
            "data.task={name: x}",
            "data.loading_threads=2",
        ),
        # unknown keys, and entries without a class
        *(
            "trainer.max_epoch=3",
            "schedule.warmup=1",
            "tag=[a]",
            "callbacks=x",
            "logger.a=b",
        ),
    ],
)
def test_a_bad_value_is_refused_with_its_key(change: str) -> None:
    """The error is one line that begins with the key (for a list, possibly with its
    section)."""
    key, _, value = change.partition("=")
    settings = changed(key, yaml.safe_load(value))
    with pytest.raises(
        InputError, match=r"^[^\n]*: expected [^\n]*, got [^\n]*$"
    ) as caught:
        config.check(settings)
    named = str(caught.value).partition(": ")[0]
    assert named == key or (
        isinstance(yaml.safe_load(value), list) and key.startswith(named)
    )


def test_one_length_of_the_warmup_is_set() -> None:
    """Negative control: each alone."""
    words = ["schedule.warmup_steps=3", "schedule.warmup_epochs=0.5"]
    for word in words:
        config.check(config.resolve(composed(word)))
    with pytest.raises(
        InputError, match=r"^schedule.warmup_epochs: expected null .* got 0.5; "
    ):
        config.check(config.resolve(composed(*words)))


def test_a_key_of_ones_own_that_resembles_another_is_passed_on() -> None:
    """As an argument of its name, also a nested one. Negative control: one that no
    class gets."""
    value = {"a": {"b": 1}}
    settings = changed("data.tasks", value)
    with pytest.raises(
        InputError, match=r"^data\.tasks: .* did you mean task, .* as in tasks: "
    ):
        config.check(settings)
    OmegaConf.update(settings, "model.nested", [{"tasks": value}], force_add=True)
    assert config.check(settings).plain["data"]["tasks"] == value


@pytest.mark.parametrize(
    ("key", "value"), [("tasks", ["a"]), ("tasks", 3), ("names", ["a", "b"])]
)
def test_a_value_of_another_type_is_no_misspelt_key(key: str, value: Any) -> None:
    """Negative control: the test above."""
    assert config.check(changed(f"data.{key}", value)).plain["data"][key] == value


@pytest.mark.parametrize(
    "key",
    [
        "seed",
        "data",
        "data.train",
        "data.task",
        "model._target_",
        "determinism.env",
        "determinism.cudnn",
        "seeds.init",
        "optimizer.lr",
        "schedule.final_fraction",
    ],
)
def test_a_missing_key_is_named(key: str) -> None:
    """A missing required key is not replaced by a default."""
    settings = deepcopy(BASE)
    section, _, name = key.rpartition(".")
    del (OmegaConf.select(settings, section) if section else settings)[name]
    with pytest.raises(InputError, match=rf"^{key}: expected "):
        config.check(settings)


def test_values_get_their_types() -> None:
    """Both as attributes and in `plain`; keys that have a default may be missing."""
    words = ("trainer.max_steps='12'", "trainer.gradient_clip_norm=1")
    resolved = config.resolve(compose.compose(*words))
    resolved.trainer.pop("test_weights", None)
    before = deepcopy(resolved)
    settings = config.check(resolved)
    assert resolved == before, "the argument is not changed"
    assert isinstance(settings, Settings)
    assert isinstance(settings.trainer, Trainer)
    trainer = settings.plain["trainer"]
    assert (settings.trainer.max_steps, trainer["max_steps"]) == (12, 12)
    assert settings.trainer.test_weights == trainer["test_weights"] == "best"
    assert settings.determinism.env["OMP_NUM_THREADS"] == "2"


def test_a_checked_configuration_survives_its_file() -> None:
    """config.yaml, the training process's only input, is unchanged after a second
    check."""
    settings = configuration("optimizer.lr=1e-5", "experiment=adding_lstm")
    again = config.check(OmegaConf.create(OmegaConf.to_yaml(settings.plain)))
    assert again == settings
    assert OmegaConf.to_yaml(again.plain) == OmegaConf.to_yaml(settings.plain)


@pytest.mark.parametrize(
    ("key", "value", "name"),
    [
        ("model._target_", "os.system", "os.system"),
        ("model._target_", "torch.optim.AdamW.x", "torch.optim.AdamW.x"),
        ("model._target_", "tiny.cnn.CNNs", "tiny.cnn.CNNs"),
        ("model.parts", [[{"_target_": "torch.hub.load"}]], "torch.hub.load"),
        ("data.collate", "subprocess.run", "subprocess.run"),
        # Loggers are not trusted: they write and send data to places that the record
        # names.
        (
            "callbacks",
            {"a": {"_target_": "seedbed.loggers.mlflow.MLflow"}},
            "seedbed.loggers",
        ),
    ],
)
def test_a_class_that_no_file_names_is_refused(key: str, value: Any, name: str) -> None:
    """Names match exactly; the error shows --trust. Negative control: an experiment of
    configs/."""
    with pytest.raises(InputError, match=f"^run: .* got {name}.* --trust {name}"):
        config.require_trusted(changed(key, value), RUN)
    config.require_trusted(
        config.resolve(compose.compose("experiment=adding_lstm")), RUN
    )


MODULE = """
from subprocess import run, Popen as start
from mine.models import parts
from mine.models.parts import Part as Piece, call
from .parts import Part as Near
from ..models import parts, Near as Far, Loop
from .parts import Part as Twice
Twice = os.system
import os
class Net: ...
def make(): ...
class Lost: ...
from os import system as Lost
alias = os.system
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a package `mine` on sys.path; importing it would fail."""
    (tmp_path / "mine" / "models").mkdir(parents=True)
    (tmp_path / "mine" / "__init__.py").write_text("1 / 0\n")
    (tmp_path / "mine" / "models" / "__init__.py").write_text(MODULE)
    parts = "from subprocess import call\nclass Part: ...\n"
    (tmp_path / "mine" / "models" / "parts.py").write_text(parts)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("mine")
def test_a_name_can_be_trusted() -> None:
    """`trust` takes a class, or a package with all that it defines. Negative control:
    others."""
    settings = changed("model._target_", "mine.models.Net")
    for name in ("mine", "mine.models", "mine.models.Net"):
        config.require_trusted(settings, RUN, [name])
    for name in ("min", "mine.model", "mine.models.Nets"):
        with pytest.raises(InputError):
            config.require_trusted(settings, RUN, [name])


@pytest.mark.usefixtures("mine")
def test_a_trusted_package_is_trusted_with_what_it_defines() -> None:
    """Names that its modules import from elsewhere or assign are refused, unless named
    exactly. Negative controls: a function and a class of the package, also imported by
    another module."""
    for name in ("make", "parts.Part", "Piece", "Near", "Far"):
        config.require_trusted(
            changed("model._target_", f"mine.models.{name}"), RUN, ["mine"]
        )
    for name in (
        "run",
        "start",
        "call",
        "Lost",
        "Twice",
        "Loop",
        "alias",
        "os.system",
        "parts",
        "../models.Net",
    ):
        settings = changed("model._target_", target := f"mine.models.{name}")
        with pytest.raises(InputError, match=f"if you trust it: --trust {target}"):
            config.require_trusted(settings, RUN, ["mine"])
        config.require_trusted(settings, RUN, [target])


@pytest.mark.parametrize("name", ["a\nimport os", "x = 1;", "\x1b[2J", "a b", ""])
def test_keys_that_are_no_names_are_refused(name: str) -> None:
    """Code is generated from some keys, and terminals interpret control characters in
    others."""
    with pytest.raises(InputError, match="expected keys of letters") as caught:
        config.require_trusted(changed("trainer.deep", {"in": [{name: 1}]}), RUN)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        # Names that no file of configs/ has, with any value.
        *(
            (name, "x")
            for name in ("LD_PRELOAD", "PYTHONPATH", "BASH_ENV", "SEEDBED_OFFLINE")
        ),
        *(("LD_PRELOAD", None), ("LD_PRELOAD", "")),
        # Values that none of them gives: that of the first is a function that PyTorch
        # calls.
        ("TORCH_PYTHON_NATIVE_USER_GRAPH_ORDER_FN", "antigravity.geohash"),
        ("TORCH_PYTHON_NATIVE_USER_GRAPH_ORDER_FN", ""),
        ("TORCH_DISABLE_NATIVE_JIT", "0"),
        ("CUBLAS_WORKSPACE_CONFIG", ":0:0"),
        ("OMP_NUM_THREADS", "2,3"),
        ("GLIBC_TUNABLES", "glibc.malloc.perturb=1"),
        ("GLIBC_TUNABLES", "glibc.cpu.hwcaps=-FMA:glibc.malloc.perturb=1"),
        ("MKL_CBWR", "AVX2\n"),
    ],
)
def test_a_record_sets_no_variable_as_no_file_of_configs_does(
    name: str, value: str | None
) -> None:
    """`trust` lifts it for one variable. Negative control: the next test."""
    settings = changed(f"determinism.env.{name}", value)
    key = f"determinism.env.{name}"
    with pytest.raises(InputError, match=f"^run: expected {key} as .* --trust {key}$"):
        config.require_trusted(settings, RUN)
    config.require_trusted(settings, RUN, [key])


@pytest.mark.parametrize("preset", ["strict", "portable", "seeded", "fast"])
def test_values_of_presets_and_limits_of_processors_are_accepted(preset: str) -> None:
    """What presets give, numbers of threads, hash seeds, limits on instruction sets,
    and null."""
    config.require_trusted(
        config.resolve(compose.compose(f"determinism={preset}")), RUN
    )
    for name, value in (
        *(
            ("MKL_CBWR", "AVX2"),
            ("MKL_CBWR", "AVX512,STRICT"),
            ("ATEN_CPU_CAPABILITY", "avx2"),
        ),
        *(("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_AMX"), ("DNNL_MAX_CPU_ISA", "avx2")),
        *(("MKL_ENABLE_INSTRUCTIONS", "AVX2"), ("ONEDNN_CPU_ISA_HINTS", "PREFER_YMM")),
        *(
            ("OPENBLAS_CORETYPE", "Haswell"),
            ("NPY_DISABLE_CPU_FEATURES", "X86_V4 AVX512_ICL"),
        ),
        ("GLIBC_TUNABLES", "glibc.cpu.hwcaps=-AVX2,-FMA"),
        *(
            ("OMP_NUM_THREADS", "64"),
            ("PYTHONHASHSEED", "42"),
            ("PYTHONHASHSEED", None),
        ),
    ):
        config.require_trusted(changed(f"determinism.env.{name}", value), RUN)


LINEAR = {"_target_": "torch.nn.Linear", "in_features": 2, "out_features": 2}


class Kept:
    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts


class Broken:
    """A model whose constructor fails."""

    def __init__(self) -> None:
        _ = 1 / 0


def test_nested_targets_are_built_and_descriptions_left_out() -> None:
    norm = {"_target_": "torch.nn.BatchNorm2d", "_partial_": True, "momentum": 0.5}
    spec = {"_target_": f"{__name__}.Kept", "parts": [LINEAR, norm], "name": "x"}
    linear, make_norm = build.build(spec, "model").parts
    assert linear.bias is not None
    assert make_norm(3).momentum == 0.5


@pytest.mark.parametrize(
    "spec",
    [
        *(
            {"_target_": name}
            for name in ("torch.nn.Liner", "nosuch.Model", "torch.nn", "X", "")
        ),
        {**LINEAR, "in_feature": 2},
        {"_target_": "torch.nn.Linear", "in_features": 2},
        {**LINEAR, "in_features": "2"},
        {"_target_": f"{__name__}.Kept", "part": 2},
        {
            "_target_": f"{__name__}.Kept",
            "parts": {**LINEAR, "_partial_": True, "x": 1},
        },
        {"no": "target"},
        5,
    ],
)
def test_a_spec_that_names_no_class_or_not_its_arguments_is_one_line(spec: Any) -> None:
    """Names of arguments are checked for every class, values only for PyTorch's."""
    with pytest.raises(
        InputError, match=r"^model(\.[a-z_]+)?: expected .*, got .*\Z"
    ) as caught:
        build.build(spec, "model")
    assert ("; did you mean parts" in str(caught.value)) is ("'part'" in repr(spec))


def test_a_users_error_has_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors in a constructor (with a note of the key) or in a module keep their
    traceback. Negative control of the one-line errors above."""
    with pytest.raises(ZeroDivisionError) as caught:
        build.build({"_target_": f"{__name__}.Broken"}, "model")
    assert caught.traceback[-1].name == "__init__"
    assert "model" in caught.value.__notes__[0]
    (tmp_path / "half_done.py").write_text("import nosuchpackage\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="nosuchpackage"):
        build.build({"_target_": "half_done.Model"}, "model")


def test_options_come_first_and_overrides_keep_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The later of two overrides of a key wins, so their order must not change."""
    words = [
        "seed=1",
        "-m",
        "seed=2",
        "--config-dir",
        "folder",
        "~trainer",
        "--config-name=a",
    ]
    monkeypatch.setattr(sys, "argv", ["train.py", *words])
    with compose.command_line():
        pass
    options = ["-m", "--config-dir", "folder", "--config-name=a"]
    assert sys.argv[1:] == [*options, "seed=1", "seed=2", "~trainer"]


def test_jobs_are_named_by_what_varies() -> None:
    """Each job's own configuration resolves its folder's name; a group is named by its
    choice."""
    overrides = [compose.job_names(["model", "model.x"]), "model=rnn", "+model.x=1"]
    with hydra.initialize_config_dir(str(ROOT / "configs"), **compose.VERSION):
        made = hydra.compose("config", overrides, return_hydra_config=True)
    OmegaConf.set_readonly(made, False)
    made.hydra.job.num = 7
    assert made.hydra.sweep.subdir == "7_model=rnn,model.x=1"


def test_values_that_are_paths_name_no_folder() -> None:
    """They could lead out of the sweep or two jobs to one folder; the other keys name
    folders."""
    words = [
        "seed=0,1",
        "notes='../a','../../b'",
        "model=cnn,sub/cnn",
        "hydra/launcher=joblib",
    ]
    overrides = {
        "sweeper": {"_target_": "x.BasicSweeper"},
        "overrides": {"task": words},
    }
    named, varied, jobs = job._jobs(OmegaConf.create(overrides))
    assert (named, varied, len(jobs)) == (["seed"], ["model", "notes", "seed"], 8)


def load_dataset(path: str, name: str | None = None, **options: Any) -> Any:
    return path, name, options


def without_name(path: str) -> str:
    return path


def with_options(path: str, **options: Any) -> Any:
    return path, options


class TestDescriptions:
    """`name` is that of the file of a group, and an argument elsewhere."""

    def test_a_nested_spec_keeps_its_name(self) -> None:
        glue = {"_target_": f"{__name__}.load_dataset", "path": "glue", "name": "mrpc"}
        expected = ("glue", "mrpc", {})
        assert build.build(
            {"_target_": f"{__name__}.without_name", "path": glue}, "data.train"
        )
        outer = {"_target_": f"{__name__}.without_name", "name": "mine", "path": glue}
        assert (
            build.build(outer, "model") == build.build(glue, "data.train") == expected
        )
        nested = {"_target_": f"{__name__}.without_name", "path": [{"a": glue}]}
        assert build.build(nested, "data") == [{"a": expected}]

    def test_the_file_of_a_group_passes_its_name_only_to_a_parameter_of_that_name(
        self,
    ) -> None:
        """Negative control: nested, options take it."""
        spec = {"path": "a", "name": "mine", "_target_": f"{__name__}.without_name"}
        assert build.build(spec, "model") == build.build(spec, "model.copy") == "a"
        spec["_target_"] = f"{__name__}.with_options"
        assert build.build(spec, "model") == ("a", {})
        assert build.build(spec, "data.train") == ("a", {"name": "mine"})
        spec["_target_"] = f"{__name__}.load_dataset"
        assert build.build(spec, "model") == ("a", "mine", {})


def test_a_section_may_be_that_of_another_place() -> None:
    """Negative control: a section that is no mapping."""
    own = compose.compose()
    own.fingerprint = "${elsewhere.fingerprint}"
    own.elsewhere = {"fingerprint": {"every_steps": 7}}
    resolved = config.resolve(own)
    assert resolved.fingerprint.every_steps == 7
    own.fingerprint = 3
    with pytest.raises(InputError, match=r"^fingerprint: expected a mapping, got 3$"):
        config.resolve(own)
