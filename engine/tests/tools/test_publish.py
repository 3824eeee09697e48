"""What is published can be verified by others, and has nothing that they do not
need."""

import importlib.util
import json
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seedbed import project, record
from seedbed.cli import publish
from seedbed.record import chain, mark
from seedbed.training import checkpoint
from tests.compare.test_audit import KEEPING, drawing, edit_fingerprint
from tests.made_up_runs import contents, edit_summary
from tests.record.test_chain import edit, edit_row
from tests.running import called, command, refusal, trained
from tests.tools.test_evaluate import alter_weights

SCRIPT = "scripts/publish.py"
VERIFY = "scripts/verify.py"
REMARK = "a remark for nobody else"
needs_cryptography = pytest.mark.skipif(
    importlib.util.find_spec("cryptography") is None, reason="needs cryptography"
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of 12 steps of which every second checkpoint is kept."""
    folder = tmp_path_factory.mktemp("publish") / "run"
    return trained(folder, *KEEPING, f"notes={REMARK!r}")


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "copy"))


def published(run: Path, out: Path, *words: str) -> Path:
    """Publish a run in this process; return the archive."""
    done = called(publish.main, str(run), "--out", str(out), *words)
    assert done.returncode == 0, done.stderr
    return out


def refused(*words: object) -> str:
    return refusal(called(publish.main, *map(str, words)))


def read(archive: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(archive) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


@pytest.mark.long
@pytest.mark.parametrize("every", [1, 2])
def test_what_is_published_is_audited(every: int, run: Path, tmp_path: Path) -> None:
    """From the zip alone; with fewer checkpoints, over the rows in between. Negative
    control: a row of the zip that is another one."""
    out = tmp_path / "run.zip"
    challenge = ("--sample", "1", "--challenge", drawing(run, 4))
    done = command(SCRIPT, str(run), "--out", str(out), "--every", str(every))
    assert done.returncode == 0, done.stderr
    done = command(VERIFY, str(out), *challenge, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    numbers = {1: [1, 4], 2: [1, 3, 4]}[every]
    assert [each["number"] for each in found["replayed"]] == numbers
    with record.run_folder(out) as folder:
        other = Path(shutil.copytree(folder, tmp_path / "other"))
    edit_fingerprint(other, 7, "loss")
    done = command(VERIFY, str(other), *challenge, "--json")
    assert (done.returncode, json.loads(done.stdout)["step"]) == (1, 7)


@pytest.mark.long
def test_what_is_published_is_verified_as_a_whole(run: Path, tmp_path: Path) -> None:
    """With its results and all of its checkpoints."""
    out = published(run, tmp_path / "run.zip", "--every", "3")
    done = command(VERIFY, str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_predictions.csv" in done.stdout
    assert "checkpoints/" not in done.stdout


def test_an_archive_has_what_others_need(run: Path, tmp_path: Path) -> None:
    """Records, checkpoints and a page; each is the run's, but for what is left out. The
    run is not changed, and the same run gives the same bytes."""
    before = contents(run)
    out = published(run, tmp_path / "run.zip", "--every", "2")
    entries = read(out)
    kept = {f"run/checkpoints/{name}.pt" for name in ("best", "last", "step_4")}
    kept |= {"run/checkpoints/step_8.pt"}
    assert {name for name in entries if name.endswith(".pt")} == kept
    for name in (chain.FILE, chain.PLAN, "metrics.csv", "code.zip"):
        assert entries[f"run/{name}"] == (run / name).read_bytes()
    page = entries["README.md"].decode()
    [*_, last] = chain.checkpoints(run).values()
    assert last["digest"] in page
    assert "verify.py FILE.zip --sample 10" in page
    again = published(run, tmp_path / "again.zip", "--every", "2")
    assert again.read_bytes() == out.read_bytes()
    assert contents(run) == before


def test_nothing_private_is_published(copy: Path, tmp_path: Path) -> None:
    """Not the mark, the command, tags, notes, loggers, files for people, or paths of
    tools, nor in checkpoints. Negative control: the run has all of it."""
    edit("config.yaml", "logger: {}", "logger: {board: {url: 'https://me@host'}}")(copy)
    path = copy / "environment.json"
    environment = record.read_json(path)
    environment["env"]["CUDA_HOME"] = "/home/somebody/cuda"
    record.write_json(path, environment)
    last = copy / "checkpoints" / "last.pt"
    state = checkpoint.load(last)
    state["origin"]["environment"] = environment
    checkpoint.save(state, last, keep_previous=False)
    words = (
        REMARK,
        "https://me@host",
        "/home/somebody",
        f"hydra.run.dir={copy.parent}",
    )
    edit_summary(copy, command=f"python train.py hydra.run.dir={copy.parent}")
    private = [word.encode() for word in words]
    private.append((copy / mark.FILE).read_bytes().strip())
    whole = b"".join(contents(copy).values())
    assert all(word in whole for word in private)
    assert private[0] in last.read_bytes()
    assert private[2] in last.read_bytes()
    entries = read(published(copy, tmp_path / "run.zip"))
    for name, content in entries.items():
        assert not [word for word in private if word in content], name
    names = {name.rpartition("/")[2] for name in entries}
    left_out = {mark.FILE, "train.log", "source.patch", "interpolations.json"}
    assert names.isdisjoint({*left_out, "loss_curve.png", "previous.pt", ".lock"})
    assert {*left_out} <= {path.name for path in copy.iterdir()}


def test_a_secret_is_refused(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the name of the variable that a file of configs/ takes a setting from.
    Negative control: a variable that is no secret is listed."""
    configs = tmp_path / "project" / "configs" / "data"
    configs.mkdir(parents=True)
    monkeypatch.setenv(project.PROJECT, str(tmp_path / "project"))
    out = tmp_path / "run.zip"
    (configs / "squares.yaml").write_text("name: ${oc.env:SOME_TOKEN}\n")
    line = refused(run, "--out", out)
    assert "got data.name, from the environment variable SOME_TOKEN" in line
    assert not out.exists()
    (configs / "squares.yaml").write_text("name: ${oc.env:SOME_PLACE}\n")
    done = called(publish.main, str(run), "--out", str(out))
    assert done.returncode == 0, done.stderr
    expected = "the archive has run/config.yaml: data.name, from the variable"
    assert f"{expected} SOME_PLACE" in done.stdout


def test_a_place_that_takes_no_files_is_one_line(copy: Path, tmp_path: Path) -> None:
    """Such as a folder of the system. Negative control: another place."""
    refused(copy, "--out", Path("/proc/run.zip"))
    published(copy, tmp_path / "run.zip")


@pytest.mark.parametrize("secret", ['pa"ss\\word-1234', "-- KEY --\nmnbvcxz-98765"])
def test_a_secret_that_a_file_escapes_is_refused(
    secret: str, copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Quotes, backslashes and line breaks are others in JSON and YAML. Negative
    control: another value."""
    edit_summary(copy, warnings=[f"token {secret}"])
    out = tmp_path / "run.zip"
    monkeypatch.setenv("SOME_TOKEN", secret)
    line = refused(copy, "--out", out)
    assert "summary.json: expected no secret, got the value of the" in line
    assert not out.exists()
    monkeypatch.setenv("SOME_TOKEN", "hunter2-hunter2")
    published(copy, out)


@pytest.mark.parametrize("name", ["config.yaml", "code.zip", "checkpoints/last.pt"])
def test_the_value_of_a_secret_is_refused(
    name: str, copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it is, code and checkpoints too. Negative controls: a variable of
    another name, and another value."""
    words = {
        "config.yaml": "seedbed.methods.Supervised",
        "code.zip": "def forward(self",
        "checkpoints/last.pt": "only-in-a-checkpoint",
    }
    last = copy / "checkpoints" / "last.pt"
    state = checkpoint.load(last)
    state["origin"]["settings"]["model"]["token"] = words["checkpoints/last.pt"]
    checkpoint.save(state, last, keep_previous=False)
    out = tmp_path / "run.zip"
    monkeypatch.setenv("SOME_TOKEN", words[name])
    line = refused(copy, "--out", out)
    assert f"copy/{name}: expected no secret, got the value of the" in line
    assert words[name] not in line
    assert not out.exists()
    monkeypatch.setenv("SOME_TOKEN", "hunter2-hunter2")
    monkeypatch.setenv("SOME_PLACE", words[name])
    published(copy, out)


def test_paths_and_addresses_are_listed_first(copy: Path, tmp_path: Path) -> None:
    """--list writes nothing. Negative control: a run without any."""
    words = (str(copy), "--list", "--json")
    concerns = json.loads(called(publish.main, *words).stdout)["concerns"]
    assert concerns == []
    edit_summary(copy, warnings=["/home/somebody/data", "see ftp://host/file"])
    concerns = json.loads(called(publish.main, *words).stdout)["concerns"]
    assert concerns == [
        "copy/summary.json: /home/somebody",
        "copy/summary.json: ftp://host/file",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (edit_row(4, 1, "0" * 64), "chain.csv: step 4 does not follow"),
        (edit("config.yaml", "lr: 0", "lr: 1"), "settings_sha256 optimizer is not"),
        (
            lambda folder: alter_weights(folder / "checkpoints" / "step_4.pt"),
            "checkpoints/step_4.pt: other state than in chain.csv",
        ),
        (
            lambda folder: alter_weights(folder / "checkpoints" / "best.pt"),
            "best.pt: expected the weights of step",
        ),
        (
            lambda folder: edit_summary(folder, metrics={"test_accuracy": 1.0}),
            "summary.json: metrics.test_accuracy is 1.0, but",
        ),
        (
            lambda folder: (folder / "link").symlink_to("/etc/hostname"),
            "expected a file or folder inside the run",
        ),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(
    change: Callable[[Path], Any], message: str, copy: Path, tmp_path: Path
) -> None:
    """Negative control: test_an_archive_has_what_others_need."""
    change(copy)
    assert message in refused(copy, "--out", tmp_path / "run.zip")
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


def test_a_live_run_and_a_file_that_is_there_are_refused(
    copy: Path, tmp_path: Path
) -> None:
    """Negative control: the same run once it has ended, and another name."""
    out = tmp_path / "run.zip"
    edit_summary(copy, status="running")
    with record.lock(copy):
        assert "process is still alive" in refused(copy, "--out", out)
    edit_summary(copy, status="finished")
    published(copy, out)
    before = out.read_bytes()
    assert "run.zip: expected a new file" in refused(copy, "--out", out)
    assert out.read_bytes() == before


def test_an_archive_appears_whole_or_not_at_all(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of more than 4 GiB, which readers refuse, leaves nothing."""
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 100_000)
    line = refused(run, "--out", tmp_path / "run.zip")
    assert "publish fewer checkpoints: --every N" in line
    assert [*tmp_path.iterdir()] == []


@pytest.mark.long
def test_a_sweep_is_published_and_each_run_verified(
    quick_sweep: Path, tmp_path: Path
) -> None:
    """Its plan has no names of users. A run of several is named behind the zip's; one
    that failed before its first step is named on the page."""
    sweep = Path(shutil.copytree(quick_sweep, tmp_path / "sweep"))
    names = [path.name for path in sweep.iterdir() if record.is_run(path)]
    (sweep / "failed").mkdir()
    for name in ("config.yaml", "summary.json"):
        shutil.copy(sweep / names[0] / name, sweep / "failed")
    edit_summary(sweep / "failed", status="failed", error="no memory", steps=None)
    out = published(sweep, tmp_path / "all.zip")
    assert "Failed before step 1: failed." in read(out)["README.md"].decode()
    line = refusal(command(VERIFY, str(out)))
    assert f"got {len(names)} (sweep/{min(names)}, " in line
    assert f"name one of them: {out}/NAME" in line
    done = command(VERIFY, f"{out}/sweep/{names[0]}")
    assert done.returncode == 0, done.stdout + done.stderr
    plan = json.loads(read(out)["sweep/sweep.json"])
    entries = [*plan["additions"], *plan["looks"]]
    assert entries
    assert not any("by" in each for each in entries)
    assert "command" not in plan
    for name in ("nothing", "../sweep"):
        assert "all.zip" in refusal(command(VERIFY, f"{out}/{name}"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "publish: expected a run or a sweep, or --check FILE.zip, got neither"),
        (["{run}", "--check", "a.zip"], "got both"),
        (["{run}"], "--out: expected a file to write"),
        (["{run}", "--list", "--out", "{new}"], "--out: expected a file to write"),
        (["{run}", "--out", "{new}.tar"], "--out: expected a name that ends in .zip"),
        (["{run}", "--out", "{run}/a.zip"], "an existing folder outside runs"),
        (["{run}", "--out", "{new}", "--every", "0"], "--every: expected an integer"),
        (["{run}", "--out", "{new}", "--every", "6"], "--every: expected at most 5"),
        (["{run}", "--out", "{new}", "--key", "k"], "--key: expected a public key"),
        (["--check", "a.zip"], "--key: expected a public key with --check"),
        (["{none}", "--out", "{new}"], "none: expected a run folder or a sweep"),
    ],
)
def test_what_makes_no_sense_ends_in_one_line(
    words: list[str], message: str, run: Path, tmp_path: Path
) -> None:
    places = {"run": run, "new": tmp_path / "new.zip", "none": tmp_path / "none"}
    assert message in refused(*(word.format(**places) for word in words))
    assert [*tmp_path.iterdir()] == []


def test_a_signature_needs_a_package(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named before anything is written."""
    monkeypatch.setattr(publish, "find_spec", lambda _name: None)
    line = refused(run, "--out", tmp_path / "run.zip", "--sign", tmp_path / "key")
    assert line == (
        "--sign: expected the package cryptography, got none; pip install cryptography"
    )
    assert [*tmp_path.iterdir()] == []


def keys(folder: Path, name: str) -> tuple[Path, Path]:
    """Make a private and a public key."""
    private = folder / f"{name}.pem"
    public = folder / f"{name}_public.pem"
    openssl = ("openssl", "genpkey", "-algorithm", "ed25519", "-out", str(private))
    subprocess.run(openssl, check=True, capture_output=True)
    openssl = ("openssl", "pkey", "-in", str(private), "-pubout", "-out", str(public))
    subprocess.run(openssl, check=True, capture_output=True)
    return private, public


@needs_cryptography
@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_an_archive_is_signed(run: Path, tmp_path: Path) -> None:
    """openssl agrees. Negative controls: another key, one other byte, no signature."""
    private, public = keys(tmp_path, "mine")
    _, other = keys(tmp_path, "other")
    out = published(run, tmp_path / "run.zip", "--sign", str(private))
    assert out.with_name("run.zip.sig").stat().st_size == 64

    def check(key: Path) -> int:
        words = ("--check", str(out), "--key", str(key), "--json")
        done = called(publish.main, *words)
        assert json.loads(done.stdout)["signed"] is (done.returncode == 0)
        return done.returncode

    assert check(public) == 0
    assert check(other) == 1
    words = ("openssl", "pkeyutl", "-verify", "-pubin", "-inkey", str(public))
    words += ("-rawin", "-in", str(out), "-sigfile", f"{out}.sig")
    assert subprocess.run(words, check=False, capture_output=True).returncode == 0
    content = bytearray(out.read_bytes())
    content[100] ^= 1
    out.write_bytes(content)
    assert check(public) == 1
    out.with_name("run.zip.sig").unlink()
    assert "--check: expected an archive and its signature run.zip.sig" in refused(
        "--check", out, "--key", public
    )


@needs_cryptography
@pytest.mark.parametrize("content", [b"", b"-----BEGIN PRIVATE KEY-----\nx", None])
def test_what_is_no_key_is_refused(
    content: bytes | None, run: Path, tmp_path: Path
) -> None:
    """Before anything is written."""
    path = tmp_path / "key.pem"
    if content is not None:
        path.write_bytes(content)
    line = refused(run, "--out", tmp_path / "run.zip", "--sign", path)
    assert line.startswith("--sign: expected a PEM file of a private Ed25519 key")
    assert "-----" not in line
    assert not (tmp_path / "run.zip").exists()
