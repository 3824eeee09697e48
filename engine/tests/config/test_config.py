"""The configuration: what cannot be is refused in one line that says what to do."""

from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from seedbed import config
from seedbed.config.check import nearest
from seedbed.config.compose import compose, configuration
from seedbed.config.rules import RULES
from seedbed.errors import InputError
from tests.running import ROOT


def refused(*overrides: str) -> str:
    with pytest.raises(InputError) as caught:
        configuration(*overrides)
    message = str(caught.value)
    assert "\n" not in message
    assert ": expected " in message
    assert ", got " in message
    assert "; " in message
    return message


# What an option needs beside it, where the defaults do not fit.
BESIDE = {
    ("data", "adding"): ("model=lstm",),
    ("data", "points"): ("model=dense",),
    ("data", "sums"): ("model=gpt", "method=language_model"),
    ("model", "dense"): ("data=points",),
    ("model", "gpt"): ("data=sums", "method=language_model"),
}


def option_names(group: str) -> list[str]:
    return sorted(path.stem for path in (ROOT / "configs" / group).glob("*.yaml"))


@pytest.mark.parametrize("group", ["data", "model", "optimizer", "schedule", "determinism"])
def test_every_option_of_every_group_is_a_valid_configuration(group: str) -> None:
    """What the repository ships passes its own checks."""
    for option in option_names(group):
        configuration(f"{group}={option}", *BESIDE.get((group, option), ()))


@pytest.mark.parametrize("name", option_names("experiment"))
def test_every_experiment_is_a_valid_configuration(name: str) -> None:
    """What the repository ships passes its own checks."""
    configuration(f"experiment={name}")


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
def test_every_seed_in_range_is_kept(seed: int) -> None:
    """0 is a seed like any other, and the largest is no exception."""
    resolved = config.resolve(compose(f"seed={seed}"))
    config.check(resolved)
    assert resolved.seed == seed
    assert resolved.seeds.init == seed


def test_a_null_seed_is_drawn_once_and_reaches_every_stream() -> None:
    """The seed drawn is the seed recorded."""
    first, second = (config.resolve(compose("seed=null")) for _ in range(2))
    assert first.seed != second.seed
    assert first.seed == first.seeds.init == first.seeds.dropout


@pytest.mark.parametrize(
    ("override", "key", "shown"),
    [
        ("seed=-1", "seed", "got -1"),
        ("seed=abc", "seed", "got 'abc'"),
        ("seed=1.5", "seed", "got 1.5"),
        ("seed=true", "seed", "got True"),
        ("seed=9223372036854775808", "seed", "got 9223372036854775808"),
        ("seeds.init=-1", "seeds.init", "got -1"),
        ("seeds.order=null", "seeds.order", "got null"),
        ("data.batch_size=0", "data.batch_size", "got 0"),
        ("data.num_workers=-1", "data.num_workers", "got -1"),
        ("data.start_method=thread", "data.start_method", "got 'thread'"),
        ("trainer.max_epochs=0", "trainer.max_epochs", "got 0"),
        ("trainer.max_epochs=-3", "trainer.max_epochs", "got -3"),
        ("trainer.precision=float16", "trainer.precision", "got 'float16'"),
        ("data.num_workers=1000000", "data.num_workers", "got 1000000"),
        ("trainer.device=tpu", "trainer.device", "got 'tpu'"),
        ("trainer.device='cuda:'", "trainer.device", "got 'cuda:'"),
        ("trainer.device='cpu:'", "trainer.device", "got 'cpu:'"),
        ("trainer.device=cuda:99999999999", "trainer.device", "got 'cuda:99999999999'"),
        ("optimizer.lr=-1", "optimizer.lr", "got -1"),
        ("optimizer.lr=nan", "optimizer.lr", "got nan"),
        ("determinism.threads=0", "determinism.threads", "got 0"),
        ("determinism.on_nondeterministic=panic", "determinism.on_nondeterministic", "'panic'"),
        ("fingerprint.every_steps=0", "fingerprint.every_steps", "got 0"),
        ("trainer.processes=0", "trainer.processes", "got 0"),
        ("trainer.shards=3", "trainer.shards", "got 3"),
        ("model._target_=os.system", "model._target_", "got os.system"),
        ("data.train._target_=subprocess.run", "data.train._target_", "got subprocess.run"),
        ("~data.train", "data.train._target_", "got nothing"),
        ("data.validation=null", "data.validation._target_", "got nothing"),
        ("~model._target_", "model._target_", "got nothing"),
        ("model.accepts=5", "model.accepts", "got 5"),
        ("trusted_packages=null", "trusted_packages", "got null"),
        ("trusted_packages=seedbed", "trusted_packages", "got 'seedbed'"),
        ("trusted_packages=[1]", "trusted_packages", "got [1]"),
        ("determinism.env=null", "determinism.env", "got null"),
        ("+determinism.env.X=[1]", "determinism.env", "'X': [1]"),
        ("~determinism.env", "determinism.env", "got nothing"),
        ("callbacks=x", "callbacks", "got 'x'; add one by +callbacks.NAME._target_=CLASS"),
        ("callbacks={a:1}", "callbacks", "a mapping of new ones; write +callbacks.NAME._target_="),
        ("+callbacks.a=1", "callbacks.a", "expected a mapping with a _target_, got 1"),
        ("metrics=x", "metrics", "got 'x'; add one by +metrics.NAME._target_=CLASS"),
        ("trainer.precision=bf16", "trainer.precision", "got 'bf16'; try bfloat16, or float32"),
        ("data.task=regression", "data.task", "'regression'; write task: {name: regression}"),
        ("~data.outputs", "data.outputs", "since model.outputs refers to it, got none; add it"),
    ],
)
def test_a_bad_value_is_refused_with_its_key(override: str, key: str, shown: str) -> None:
    """The line names the key, what was given, and what to do."""
    message = refused(override)
    assert message.startswith(f"{key}: ")
    assert shown in message


@pytest.mark.parametrize(
    "word",
    ["+model.layers=[64,64]", "+model.hidden_size=[8,8]", "model.dropout=null",
     "model.input_shape=null", "data.input_shape=[0]", "data.outputs=[2,3]"],
)  # fmt: skip
def test_arguments_of_your_own_classes_have_no_rules_of_the_engine(word: str) -> None:
    """Whatever a model or a data set calls its arguments, its constructor gets them as they are."""
    key, _, value = word.lstrip("+").partition("=")
    found = OmegaConf.select(configuration(word), key)
    assert found == OmegaConf.create({"it": yaml.safe_load(value)})["it"]


def test_a_model_that_cannot_take_the_data_is_refused() -> None:
    """An image model is not given sequences."""
    message = refused("model=cnn", "data=adding")
    assert message.startswith("model: ")
    assert "adding" in message


def test_a_key_nobody_knows_is_refused_and_the_nearest_named() -> None:
    """A misspelt key does not silently do nothing."""
    message = refused("+trainer.max_epoch=3")
    assert message.startswith("trainer.max_epoch: ")
    assert "trainer.max_epochs" in message


@pytest.mark.parametrize("name", ["tags", "notes", "wandb"])
def test_a_key_that_is_like_no_other_is_not_guessed_at(name: str) -> None:
    """Of `tags`, `data.task` is no misspelling; `lr` and `sed` are as good as known ones."""
    message = refused(f"+{name}=[dev]")
    assert "got a new one; see `python train.py --cfg job`; an argument of a class goes" in message
    assert message.endswith(f"+model.{name}=VALUE")
    assert refused("+sed=1").endswith("did you mean seed")
    assert refused("+lr=1").endswith("did you mean optimizer.lr")
    assert "an argument of a class" not in refused("+trainer.foo=1")


def test_an_option_of_a_group_that_people_add_to_may_be_added() -> None:
    """AdamW is like Adam by name alone; negative control: presets are the engine's."""
    adam = refused("optimizer=adam")
    assert adam.endswith("did you mean optimizer=adamw, or add configs/optimizer/adam.yaml")
    assert "or add" not in refused("determinism=strikt")


def test_the_nearest_key_is_one_of_the_same_section() -> None:
    assert "did you mean data.validation.samples" in refused("data.validation.sampels=3")
    assert nearest("optimizer.ls", ["optimizer", "optimizer.lr"]) == "did you mean optimizer.lr"
    assert "optimizer" not in nearest("optimizer.zz", ["optimizer", "optimizer.lr", "seed"])


def test_a_package_that_is_trusted_may_be_used() -> None:
    """Negative control of the refused targets: the list decides, not the name."""
    resolved = config.resolve(
        compose(
            "model._target_=my_project.Model", "trusted_packages=[my_project,project,seedbed,torch]"
        )
    )
    config.check(resolved)


def test_a_prefix_of_a_trusted_name_is_not_trusted() -> None:
    """`torch.nnx` is not in `torch.nn`."""
    assert not config.is_trusted("torch.nnx.Evil", ["torch.nn"])
    assert config.is_trusted("torch.nn.Linear", ["torch.nn"])


def test_a_missing_key_is_refused(tmp_path: Path) -> None:
    """A key that a file lost is not guessed; one that older records never had may be missing."""
    resolved = config.resolve(compose())
    del resolved.determinism.avx
    config.check(resolved)
    del resolved.trainer.max_epochs
    with pytest.raises(InputError, match=r"trainer\.max_epochs: expected .*, got nothing"):
        config.check(resolved)


def test_a_resolved_configuration_survives_its_file(tmp_path: Path) -> None:
    """config.yaml is the training process's only input, so it must lose nothing."""
    resolved = config.resolve(compose("optimizer.lr=1e-5"))
    path = tmp_path / "config.yaml"
    path.write_text(OmegaConf.to_yaml(resolved))
    assert OmegaConf.load(path) == resolved


_SECTIONS = sorted({key.rpartition(".")[0] for key in RULES if "." in key})


@pytest.mark.parametrize("section", _SECTIONS)
def test_a_section_that_is_a_list_or_a_text_is_refused_in_one_line(section: str) -> None:
    """In a configuration to be trained, and in a record to be trusted."""
    usual = compose()
    for value in ([], [1], "text", 1):
        resolved = config.resolve(usual)
        OmegaConf.update(resolved, section, value, merge=False, force_add=True)
        for check in (config.check, lambda it: config.require_trusted(it, Path("run"))):
            with pytest.raises(InputError, match=rf"^{section}: expected [^\n]*$"):
                check(resolved)


def test_keys_that_a_section_lacks_are_named_at_once() -> None:
    """One message for the data set, with what each key must be."""
    settings = configuration("data=points", "model=dense")
    for name in ("batch_size", "name", "task", "train"):
        del settings.data[name]
    with pytest.raises(InputError) as refused:
        config.check(settings)
    assert str(refused.value).startswith(
        "data: expected the keys name (text), batch_size (an integer >= 1), train._target_ (the "
        "dotted name of a class), task (a task for method=supervised, such as {name: "
        "classification}), got none of these; add them to "
    )


def test_a_data_set_need_not_say_how_it_is_loaded() -> None:
    """The engine has defaults for it, which a data set's own file goes before."""
    words = ("eval_batch_size", "num_workers", "persistent_workers", "prefetch_factor")
    without = configuration("data=points", "model=dense")
    file = OmegaConf.load(ROOT / "configs/data/points.yaml")
    assert not set(words) & set(file)
    assert [without.data[name] for name in words] == [500, 0, True, 2]


@pytest.mark.parametrize("value", ["ten", "1.5", "0", "true"])
def test_a_number_of_outputs_is_an_integer(value: str) -> None:
    """Whatever the model is: each of them would fail inside PyTorch."""
    assert refused(f"data.outputs={value}").startswith("data.outputs: expected an integer >= 1")
