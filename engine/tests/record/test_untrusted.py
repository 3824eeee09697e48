"""Untrusted records have no side effects; each attack has a negative control."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

import seedbed
from seedbed import compare, config, errors, launch, offline, record
from seedbed.compare import report
from seedbed.config import build
from seedbed.config.compose import configuration
from seedbed.errors import InputError
from seedbed.record import Change, untrusted
from tests.made_up_runs import contents, write_csv, write_result
from tests.running import command, refusal

FIELDS = ("step", "loss")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a made-up run folder, as of a finished run."""
    return write_result(tmp_path / "run")


def bomb(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x]"]
    lines += [
        f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]" for n in range(1, levels)
    ]
    return "\n".join(lines)


@pytest.mark.parametrize(
    "content",
    [
        "a: [1,",
        "a: !!python/object/apply:os.getcwd []",
        "a: " + "[" * 40 + "]" * 40,
        "a: " + "[" * 9000,
        "a: [" + "1, " * 30_000 + "1]",
        "a: 0x" + "f" * 5000,
        bomb(200),
    ],
)
def test_yaml_beyond_the_limits_is_refused(content: str, tmp_path: Path) -> None:
    """Tags, depth, number of values, integers too long to print, and aliases that
    triple in size per level. Negative control: content within the limits; PyYAML
    expands 6 levels of aliases."""
    path = tmp_path / "config.yaml"
    path.write_text(content)
    for read in (record.read_config, untrusted.read_dict):
        with pytest.raises(InputError, match="expected YAML, got"):
            read(tmp_path)
    assert str(yaml.safe_load(bomb(6))["a5"]).count("x") == 3**6
    path.write_text(
        "a: " + "[" * 20 + "]" * 20 + "\nb: [" + "1, " * 10_000 + f"1]\nc: {2**63}"
    )
    assert len(record.read_config(tmp_path).b) == 10_001


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.yaml", "seed: 0\noptimizer: {lr: 1}\noptimizer: {lr: 2}\n"),
        ("config.yaml", "data: {train: {a: 1, b: 2, a: 1}}\n"),
        ("config.yaml", "1: a\n'1': b\n"),  # equal as parts of a dotted key
        ("config.yaml", "a: {<<: {b: 1}, b: 2}\n"),
        ("summary.json", '{"metrics": {"test_loss": 1, "test_loss": 0}}'),
        ("environment.json", '{"device": "cpu", "device": "cuda"}'),
        ("sweep.json", '{"command": [], "command": ["a"]}'),
        ("interpolations.json", '{"a": "${b}", "a": "${c}"}'),
    ],
)
def test_a_key_that_is_there_twice_is_refused(
    name: str, text: str, tmp_path: Path
) -> None:
    """Readers may show one value and use the other. Negative control: equal keys in two
    places."""
    (tmp_path / name).write_text(text)
    read = (
        untrusted.read_dict
        if name == "config.yaml"
        else (lambda run: record.read_json(run / name))
    )
    with pytest.raises(InputError, match=f"{name}: expected (YAML|JSON), got "):
        read(tmp_path)
    (tmp_path / name).write_text('{"a": {"x": 1}, "b": {"x": 1}}')
    assert read(tmp_path) == {"a": {"x": 1}, "b": {"x": 1}}


# PyTorch imports and calls what it names
PAYLOAD = "TORCH_PYTHON_NATIVE_USER_GRAPH_ORDER_FN"


def test_a_variable_of_a_record_executes_nothing(
    quick_run: Path, tmp_path: Path
) -> None:
    """Each command that would train, load or resume a record refuses it, and nothing is
    imported. Negative control: a training process under this variable, which only the
    user can ask for."""
    canary = tmp_path / "canary"
    (tmp_path / "payload.py").write_text(
        f"open({str(canary)!r}, 'w')\norder = lambda *_: None\n"
    )
    folder = Path(shutil.copytree(quick_run, tmp_path / "run"))
    other = Path(shutil.copytree(quick_run, tmp_path / "other"))
    settings = record.read_config(folder)
    settings.determinism.env[PAYLOAD] = "payload.order"
    OmegaConf.save(settings, folder / "config.yaml")
    rows = record.read_fingerprints(other)
    rows[3]["loss"] = "0" * 16
    write_csv(other / "fingerprints.csv", record.FINGERPRINT_FIELDS, rows)
    found = {"PYTHONPATH": str(tmp_path)}
    for words in (
        *(("verify", str(folder)), ("evaluate", str(folder)), ("resume", str(folder))),
        ("compare", str(folder), str(other), "--explain"),
    ):
        done = command("-m", "seedbed", *words, environment=found)
        assert done.returncode == 2, done.stdout
        assert f"--trust determinism.env.{PAYLOAD}" in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr
    for load in (seedbed.load, seedbed.data):
        with pytest.raises(InputError, match=PAYLOAD):
            load(folder)
    assert not canary.exists()
    environment = launch.training_environment(config.check(settings))
    environment["PYTHONPATH"] += f":{tmp_path}"
    subprocess.run([sys.executable, "-c", "import torch"], env=environment, timeout=120)
    assert canary.exists()


@pytest.mark.parametrize("key", ["optimizer", "logger.own", "callbacks.own"])
def test_a_class_that_configs_do_not_name_is_not_resumed(
    key: str, quick_run: Path, tmp_path: Path
) -> None:
    """Nothing is imported, and no file changes. Negative control: with --trust, it is
    built."""
    canary = tmp_path / "canary"
    (tmp_path / "payload.py").write_text(f"open({str(canary)!r}, 'w')\n")
    folder = Path(shutil.copytree(quick_run, tmp_path / "run"))
    settings = record.read_config(folder)
    OmegaConf.update(settings, f"{key}._target_", "payload.Class", force_add=True)
    OmegaConf.save(settings, folder / "config.yaml")
    before = contents(folder)
    words = (
        "scripts/resume.py",
        str(folder),
        "trainer.max_steps=13",
        "--allow-changed",
    )
    found = {"PYTHONPATH": str(tmp_path)}
    line = refusal(command(*words, environment=found))
    assert "expected classes that a file of configs/ names, got payload.Class" in line
    assert contents(folder) == before
    assert not canary.exists()
    # the others are built later, and this class has no constructor
    if key == "optimizer":
        command(*words, "--trust", "payload.Class", environment=found)
        assert canary.exists()


@pytest.mark.parametrize("value", ["x-${oc.env:CANARY}", "${seed}", "???"])
def test_no_interpolation_of_a_record_is_resolved(
    value: str, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could leak the reader's environment. Negative control: OmegaConf resolves
    it."""
    monkeypatch.setenv("CANARY", "hunter2")
    path = run / "config.yaml"
    path.write_text(path.read_text() + f"data_root: '{value}'\n")
    with pytest.raises(InputError, match="where a record has a value") as refused:
        compare.read(run)
    assert "hunter2" not in str(refused.value)
    path.write_text("root: ${oc.env:CANARY}\n")
    assert OmegaConf.load(path).root == "hunter2"


def test_json_that_is_nested_deeply_is_refused(run: Path) -> None:
    """It is refused even if Python's parser accepts it. Negative control: 20 levels are
    read."""
    path = run / "environment.json"
    deep = ['{"a": ' * depth + "1" + "}" * depth for depth in (900, 100_000)]
    for content in (*deep, '{"a": ' + "9" * 100 + "}", "", "{", "\x00", '{"a": 1'):
        path.write_text(content)
        with pytest.raises(InputError, match="expected JSON, got"):
            compare.read(run)
    path.write_text('{"a": ' * 20 + "1" + "}" * 20)
    assert list(record.flatten(record.read_json(path)).values()) == [1]


@pytest.mark.parametrize("line", ["1," + "9" * 200_000, "1,2,3", ""])
def test_a_line_of_a_table_that_is_no_row_is_refused(line: str, tmp_path: Path) -> None:
    """Lines too long or with other columns. Negative control: rows are read, but no
    partial one."""
    path = tmp_path / "t.csv"
    path.write_text(f"step,loss\n{line}\n" * 2)
    with pytest.raises(
        InputError, match="expected a table with the columns step,loss, got"
    ):
        untrusted.read_rows(path, FIELDS)
    path.write_text("step,loss\n1,2\n3,4\n5,")
    assert untrusted.read_rows(path, FIELDS)[1:] == [{"step": "3", "loss": "4"}]


@pytest.mark.parametrize("name", ["config.yaml", "environment.json", "metrics.csv"])
def test_what_never_ends_is_not_read(name: str, run: Path) -> None:
    """A pipe, a device, a sparse file of 4 TiB. Negative control: the same as plain
    files."""
    (run / "environment.json").write_text("{}")
    (run / "fingerprints.csv").write_text(",".join(record.FINGERPRINT_FIELDS) + "\n")
    compare.read(run)
    path = run / name
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero"), huge):
        path.unlink()
        make(path)
        with pytest.raises(
            InputError, match=r"expected a (file of at most|run folder)"
        ):
            compare.read(run)


def huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 42)


def test_control_characters_of_a_record_are_escaped(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Keys, values and errors are escaped. Negative control: a `Change` holds them
    unescaped."""
    evil = "\x1b]0;title\x07\u202e\ud800\x9b1m"
    changes = [Change(f"model.{evil}\n  forged", evil, "b")]
    shown = "\n".join(report.table(changes))
    assert evil in changes[0].key

    with pytest.raises(SystemExit, match="2"), errors.exit_on_errors():
        raise InputError(evil)
    shown += capsys.readouterr().err
    assert not set(shown) & set(evil) - set("]0;title1m")
    assert len(shown.splitlines()) == 2
    shown.encode()


def test_a_training_process_does_not_import_from_the_current_folder(
    tmp_path: Path,
) -> None:
    """Nor do its children, which inherit the variable. Negative control: without the
    variable."""
    canary = tmp_path / "canary"
    (tmp_path / "omegaconf.py").write_text(
        f"open({str(canary)!r}, 'w')\nraise SystemExit\n"
    )
    environment = launch.training_environment(configuration("determinism=fast"))
    words = [sys.executable, "-m", "seedbed.worker", "train", "nowhere"]
    for variables, sings in (
        (environment, False),
        ({**environment, "PYTHONSAFEPATH": ""}, True),
    ):
        subprocess.run(
            words, cwd=tmp_path, env=variables, timeout=120, capture_output=True
        )
        assert canary.exists() is sings


def test_nothing_is_downloaded_for_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torchvision's `download` is turned off. Negative control: it is not in a user's
    own run."""
    spec = {"_target_": "builtins.dict", "download": True}
    assert build.build(spec, "data.train") == {"download": True}
    with offline.refusing(is_needed=False):
        assert build.build(spec, "data.train") == {"download": True}
    with offline.refusing():
        assert build.build(spec, "data.train") == {"download": False}
    assert build.build(spec, "data.train") == {"download": True}
    monkeypatch.setenv(offline.VARIABLE, "1")
    assert build.build(spec, "data.train") == {"download": False}


def test_a_process_without_addresses_opens_none() -> None:
    """Python refuses to connect. Negative control: the same program without the
    variable."""
    code = (
        "import socket\nfrom seedbed import offline\noffline.enforce()\n"
        "a, b = socket.socketpair()\n"
        "with socket.create_server(('127.0.0.1', 0)) as server:\n"
        "    socket.socket().connect(server.getsockname())\n    print('connected')\n"
    )
    for online in (False, True):
        variables = {**os.environ, **offline.variables(online)}
        done = command("-c", code, environment=variables)
        assert ("no address is opened for a record" in done.stderr) is not online
        assert ("connected" in done.stdout) is online


@pytest.mark.parametrize("name", ["metrics.csv", "checkpoints", "new"])
def test_links_out_of_a_run_are_not_written_through(
    name: str, run: Path, tmp_path: Path
) -> None:
    """Negative control: a plain write, as to train.log, does so. Links inside a run are
    fine."""
    target = tmp_path / "precious"
    target.write_text("mine\n")
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(target)
    with pytest.raises(InputError, match=f"{name}: expected a file or folder inside"):
        launch.resume_run(run, (), allow_changed=True)
    with pytest.raises(InputError, match=f"{name}: expected a file or folder inside"):
        launch.resume(run, {})  # as by its command, given again
    assert target.read_text() == "mine\n"
    (run / name).write_text("a\n")
    assert target.read_text() == "a\n"
    (run / name).unlink()
    (run / name).symlink_to(run / "summary.json")
    untrusted.reject_external_links(run)
