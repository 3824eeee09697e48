"""The record of a run's inputs and environment: files, statistics, code.zip,
processor."""

import hashlib
import json
import os
import shutil
import sys
import textwrap
import zipfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import seedbed
from seedbed import environment, record
from seedbed.errors import InputError
from seedbed.record import code, files, untrusted
from tests import tiny
from tests.end_to_end.live import ADDING
from tests.run.runs import StopAt, begun, of_method, resumed, trained, work
from tests.running import command, printed, refusal, run, train
from tests.tiny import FEATURES
from tests.tiny.data import Noisy
from tests.tiny.models import Dense


def test_every_file_that_an_argument_names_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also nested, in lists, by relative path. Negative control: files in other
    sections."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for name in ("a.pt", "b.pt", "c.txt", "d", "folder/e", "folder/f"):
        Path(name).write_text(name)
    settings: dict[str, Any] = {
        "model": {
            "name": "cnn",
            "_target_": "m.D",
            "weights": "a.pt",
            "parts": [{"x": "b.pt"}],
        },
        "data": {
            "train": {"vocabulary": "c.txt", "root": "folder"},
            "task": {"name": "cnn"},
        },
        "optimizer": {"lr": 0.1, "long": "x" * 5000, "none": None, "zero": "a\0b"},
        "trainer": {"device": "d"},
        "files": ["folder"],
    }
    found = files.named_in(settings)
    assert set(found) == {"a.pt", "b.pt", "c.txt", "folder"}
    assert found["a.pt"] == hashlib.sha256(b"a.pt").hexdigest()
    with pytest.raises(
        InputError, match=r"^files: expected a file or a folder with files, got no"
    ):
        files.named_in({"files": ["nothing"]})


def test_a_folder_that_a_data_set_reads_is_one_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By contents if it is small, wherever it is; else by names and sizes, with times
    beside them.

    Negative controls: a folder of another section, the project's, that of a data set
    that states its own digests, and files that tools write."""
    monkeypatch.chdir(tmp_path)
    for name in ("leaves/a/1.png", "leaves/b/2.png", "other/x"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(name)
    settings: dict[str, Any] = {
        "data": {
            "root": ".",
            "train": {"nested": [{"root": "leaves"}]},
            "test": {"root": "other"},
        },
        "model": {"x": "other"},
    }

    def digests(*stated: str) -> dict[str, str]:
        return files.named_in(settings, stated)

    def kinds(digests: dict[str, str]) -> dict[str, str]:
        return {path: value.partition(":")[0] for path, value in digests.items()}

    monkeypatch.setenv("SEEDBED_PROJECT", str(tmp_path))
    first = digests("test")
    assert first.keys() == {".", "leaves"}
    assert kinds(first) == {".": "not recorded", "leaves": "2 files"}
    assert digests().keys() == {".", "leaves", "other"}
    (tmp_path / "leaves" / ".cache").write_text("written by a tool")
    os.utime("leaves/a/1.png", (1, 1))
    assert digests("test") == first, "contents do not depend on times"
    (tmp_path / "leaves/a/1.png").write_text("leaves/a/2.png")
    assert digests("test")["leaves"] != first["leaves"]

    monkeypatch.setattr(files, "_CHEAP_FILES", 1)
    listed = digests("test")
    assert kinds(listed)["leaves"] == "names and sizes"
    os.utime("leaves/a/1.png", (2, 2))
    again = digests("test")
    assert [name for name in listed if listed[name] != again[name]] == [
        "leaves (times)"
    ]
    (tmp_path / "leaves/b/3.png").touch()
    assert digests("test")["leaves"] != listed["leaves"]
    settings["files"] = ["leaves"]
    assert kinds(digests("test"))["leaves"] == "3 files", (
        "of `files` always the contents"
    )
    monkeypatch.setattr(files, "_MOST_FILES", 1)
    settings["files"] = []
    assert digests("test")["leaves"] == "not recorded: more than 1 files"


def test_a_folder_whose_links_lead_back_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also as one of `files`, of which all contents count. Each link doubles the paths
    to a folder. Negative control: a link to another folder is followed."""
    monkeypatch.setenv("SEEDBED_PROJECT", str(tmp_path / "project"))
    for name in ("leaves", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.png").write_text(name)
    for number in range(4):
        (tmp_path / "leaves" / f"up{number}").symlink_to(tmp_path / "leaves")
    settings: dict[str, Any] = {"files": [str(tmp_path / "leaves")]}
    [of_one] = files.named_in(settings).values()
    assert of_one.startswith("1 files")
    (tmp_path / "leaves" / "up9").symlink_to(tmp_path / "other")
    [of_two] = files.named_in(settings).values()
    assert of_two.startswith("2 files")


class Folder(Noisy):
    """Noisy samples, and the name of a folder."""

    def __init__(self, samples: int, root: str) -> None:
        super().__init__(samples)


@pytest.mark.usefixtures("this_process_trains")
def test_a_changed_folder_is_named_on_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line. A large one is named when the run begins, since its contents are not
    recorded. Negative control: equal contents, written anew."""
    leaves = tmp_path / "leaves"
    leaves.mkdir()
    (leaves / "1.png").write_text("1")
    words = (f"data.train._target_={__name__}.Folder", f"+data.train.root={leaves}")
    run = begun(tmp_path / "run", *of_method("FineTuning", *words))
    assert work(run, StopAt(9)) == 143
    assert "lacks" not in capsys.readouterr().out
    (leaves / "1.png").write_text("2")
    assert work(run) == 2
    error = capsys.readouterr().err
    assert f"files_sha256.{leaves} 1 files: " in error
    assert error.count("\n") == 1
    (leaves / "1.png").write_text("1")
    assert work(run) == 0
    words = (words[0], "+data.train.root=/")
    assert work(begun(tmp_path / "project", *of_method("FineTuning", *words))) == 0
    assert (
        "record lacks the contents of /; add some to files" in capsys.readouterr().out
    )


def changed(
    before: dict[str, Any], now: dict[str, Any], where: str = "b"
) -> dict[str, bool]:
    origins = [
        record.Origin({"data": {"root": root}, "files": []}, {"files_sha256": files})
        for root, files in (("a", before), (where, now))
    ]
    return {each.key: each.alters_bits for each in record.changes(*origins)}


def test_a_folder_that_was_copied_elsewhere_alters_no_bits() -> None:
    """Nor do other times. Negative controls: other contents; a digest in one record
    alone."""
    same = changed({"a": "1"}, {"b": "1"})
    assert same == {
        "data.root": False,
        "files_sha256.a": False,
        "files_sha256.b": False,
    }
    assert changed({"a": "1"}, {"b": "2"})["data.root"]
    assert changed({}, {})["data.root"], "nothing is known of either"
    assert changed({"a": "1", "a (times)": "1"}, {"a": "1", "a (times)": "2"}, "a") == {
        "files_sha256.a (times)": False
    }
    assert changed({"a": "1"}, {"a": "2"}, "a") == {"files_sha256.a": True}


def test_versions_of_what_classes_come_from_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of configured classes and of imports by modules that are not installed.
    Negative
    control: other packages."""
    text = "import os\nimport mlxtend\nfrom sklearn import clone\n"
    (tmp_path / "imports_others.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("imports_others", "tqdm", "joblib"):
        __import__(name)
    expected = {name: version(name) for name in ("tqdm", "mlxtend", "scikit-learn")}
    settings = {
        "model": {"_target_": "tqdm.tqdm"},
        "data": {"train": {"root": "joblib"}},
    }
    found = environment.more_versions(settings)
    assert found.items() >= expected.items()
    assert "joblib" not in found
    monkeypatch.delitem(sys.modules, "imports_others")
    found = environment.more_versions({"model": {"_target_": "torch.nn.Linear"}})
    assert not {"tqdm", "mlxtend"} & found.keys()


CPUINFO = (
    "model\t\t: {model}\nmodel name\t: Intel(R) Xeon(R) Processor\nstepping\t:"
    " {stepping}\n\n"
)


def test_processors_that_share_a_name_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By family, model, stepping and cache, also on Arm. Negative control: the same
    processor."""

    def of(text: str) -> dict[str, str | None]:
        (tmp_path / "cpuinfo").write_text(text)
        return environment.cpu(tmp_path / "cpuinfo")

    found = [
        of(CPUINFO.format(model=model, stepping=stepping))
        for model, stepping in ((85, 4), (85, 7), (106, 6), (85, 4))
    ]
    assert found[0]["model"] == "Intel(R) Xeon(R) Processor"
    assert found[0] == found[3] != found[1] != found[2] != found[0]
    assert of("CPU part\t: 0xd40\n") != of("CPU part\t: 0xd4f\n")
    features = {"avx2": True, "amx_int8": True, "l2_cache_size": 1}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: features)
    described = environment.cpu()
    assert (described["features"], described["l2_bytes"]) == ("amx_int8 avx2", 1)


# A loop that imports a module in each step and keeps the imported files.
LOOP = """
import sys
from pathlib import Path
from seedbed.environment import Imports
observer = Imports(Path(sys.argv[1]), {"git": {"commit": None}}, Path(sys.argv[2]))
for name in sys.argv[3:]:
    __import__(name)
    observer.note()
"""


@pytest.fixture
def places(tmp_path: Path) -> Path:
    """Create a project without git, and a package and a module elsewhere on
    PYTHONPATH."""
    for name, text in {
        "project/src/mine/__init__.py": "",
        "project/src/mine/model.py": (
            "import table, other.part\nSUM = table.T + other.part.P\n"
        ),
        "project/table.py": "T = 1\n",
        "project/scratch.py": "raise SystemExit('never imported')\n",
        "elsewhere/other/__init__.py": "",
        "elsewhere/other/part.py": "P = 2\n",
        "site-packages/installed.py": "I = 4\n",
    }.items():
        (tmp_path / "here" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "here" / name).write_text(text)
    (tmp_path / "here" / "run").mkdir()
    return tmp_path / "here"


def kept(places: Path, *modules: str) -> dict[str, bytes]:
    """Import modules in a new process; return the files in its code.zip, without the
    engine."""
    root = places / "project"
    path = [root / "src", root, places / "elsewhere", places / "site-packages"]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    words = ("-c", LOOP, str(places / "run"), str(root), *modules)
    run(places, sys.executable, *words, env=variables)
    files = untrusted.read_zip(places / "run" / code.ARCHIVE)
    of_engine = ("elsewhere/seedbed/", "elsewhere/torch_deterministic_kernels/")
    return {name: files[name] for name in files if not name.startswith(of_engine)}


@pytest.mark.long
def test_what_a_compiler_loads_itself_is_not_kept(places: Path) -> None:
    """Triton's launchers lie in its cache, and a resumed process has not compiled them
    yet.

    Negative control: the same file where an import finds it.
    """
    import _csv  # an extension module

    library = Path(_csv.__file__)
    loads = """
    import importlib.util
    spec = importlib.util.spec_from_file_location("_csv", {!r})
    import sys
    sys.modules["_csv"] = importlib.util.module_from_spec(spec)
    """
    for place in ("cache", "elsewhere"):
        (places / place).mkdir(exist_ok=True)
        copy = shutil.copy(library, places / place)
        text = textwrap.dedent(loads).format(str(copy))
        (places / "elsewhere" / "compiler.py").write_text(text)
        is_kept = f"elsewhere/{library.name}" in kept(places, "compiler")
        assert is_kept is (place == "elsewhere")


@pytest.mark.long
def test_imported_files_are_kept_and_imported_from_their_zip(places: Path) -> None:
    """Those in and outside the project, at any step, without git; not installed or
    unused ones.

    After unzip, PYTHONPATH is enough to import them, without the original folders.
    Equal code has equal bytes, also in a copy and imported in another order. Negative
    control: a changed line.
    """
    copy = shutil.copytree(places, places.with_name("copy"))
    files = kept(places, "installed", "mine.model")
    first = (places / "run" / code.ARCHIVE).read_bytes()
    for is_changed in (False, True):
        kept(copy, "table", "mine.model")
        assert ((copy / "run" / code.ARCHIVE).read_bytes() != first) is is_changed
        (copy / "elsewhere" / "other" / "part.py").write_text("P = 3\n")
    assert set(files) == {
        *("src/mine/__init__.py", "src/mine/model.py", "table.py"),
        *("elsewhere/other/__init__.py", "elsewhere/other/part.py", "PYTHONPATH"),
    }
    assert files["PYTHONPATH"] == b"src:.:elsewhere\n"
    digests = record.read_json(places / "run" / "environment.json")["imported_files"]
    for name, content in files.items():
        assert name == "PYTHONPATH" or digests[name] == code.sha256(content)
    for name in ("project", "elsewhere"):
        shutil.rmtree(places / name)
    with zipfile.ZipFile(places / "run" / code.ARCHIVE) as made:
        made.extractall(places / "again")
        assert {entry.date_time[0] for entry in made.infolist()} == {1980}, (
            "whenever it is made"
        )
    command = (
        'PYTHONPATH=$(cat PYTHONPATH) "$0" -c "import mine.model;'
        ' print(mine.model.SUM)"'
    )
    assert run(places / "again", "sh", "-c", command, sys.executable).stdout == "3\n"


def test_a_run_names_what_it_uses_and_nothing_else(quick_run: Path) -> None:
    """The files of the model and the loop; not another model, nor code that compares
    runs."""
    files = record.read_json(quick_run / "environment.json")["imported_files"]

    assert {"src/tiny/cnn.py", "elsewhere/seedbed/training/loop.py"} <= files.keys()
    assert "src/tiny/recurrent.py" not in files
    assert not [path for path in files if path.startswith("elsewhere/seedbed/compare")]
    kept = untrusted.read_zip(quick_run / code.ARCHIVE)
    for name, digest in files.items():
        assert code.sha256(kept[name]) == digest
        assert kept[name] == code.read_here(name)


EDITED = """
from pathlib import Path
from tests.tiny.models import Dense

class Net(Dense):
    def __init__(self, **options):
        super().__init__(**options)
        file = Path(__file__)
        file.write_text(file.read_text() + "# edited\\n")
"""


def test_a_file_that_is_edited_while_a_run_is_built_is_kept_as_it_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, this_process_trains: None
) -> None:
    """Negative control: the file here has the edit afterwards."""
    file = tmp_path / "edited_meanwhile.py"
    file.write_text(EDITED)
    monkeypatch.syspath_prepend(str(tmp_path))
    model = {**tiny.DENSE, "_target_": "edited_meanwhile.Net"}
    words = of_method("Supervised", module="seedbed.methods", model=model)
    folder = trained(tmp_path / "run", *words, "trainer.max_steps=2")
    name = f"{code.ELSEWHERE}/{file.name}"
    found = record.read_json(folder / "environment.json")
    assert (
        untrusted.read_zip(folder / code.ARCHIVE)[name].decode()
        == EDITED
        != file.read_text()
    )
    assert found["imported_files"][name] == code.sha256(EDITED.encode())


CALL = "statistics of 48 samples"


class Points(Noisy):
    """Points, standardised if statistics are given."""

    def __init__(self, samples: int, statistics: Any = None) -> None:
        super().__init__(samples)
        self.points = torch.arange(samples * FEATURES).view(samples, FEATURES) / samples
        self.statistics = statistics

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        point = self.points[index]
        if self.statistics is not None:
            point = (point - torch.tensor(self.statistics["mean"])) / self.statistics[
                "deviation"
            ]
        return point, index % 3


def of_points(dataset: Points) -> Mapping[str, Any]:
    """Return the mean of each feature, a tensor, and the deviation of all, a NumPy
    scalar."""
    print(f"statistics of {len(dataset)} samples")
    return {"mean": dataset.points.mean(0), "deviation": dataset.points.numpy().std()}


class Knowing(Dense):
    """Keeps the statistics that it was given."""

    def __init__(self, statistics: Mapping[str, Any], **options: Any) -> None:
        super().__init__(**options)
        self.given = statistics


ASKING = {"data.train": "Points", "data.validation": "Points", "model": "Knowing"}
WORDS = of_method(
    "FineTuning",
    *(f"{key}._target_={__name__}.{name}" for key, name in ASKING.items()),
    *(f"+{key}.statistics=null" for key in ASKING),
    f"+data.statistics._target_={__name__}.of_points",
)


@pytest.mark.usefixtures("this_process_trains")
def test_statistics_are_computed_once_and_reach_whoever_asks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are those of the training samples; a resumed or loaded run has the same
    ones.

    Negative control: without the function, null stays null, and the batches differ.
    """
    run = trained(tmp_path / "run", *WORDS)
    assert capsys.readouterr().out.count(CALL) == 1, "also with a rehearsal"
    found = record.read_json(run / "statistics.json")
    expected = Points(48).points
    assert found == {
        "mean": expected.mean(0).tolist(),
        "deviation": float(expected.numpy().std()),
    }
    digest = code.sha256((run / "statistics.json").read_bytes())
    assert record.read_json(run / "environment.json")["statistics_sha256"] == digest
    asking = {
        k for k, v in record.flatten(untrusted.read_dict(run)).items() if v is None
    }
    assert {f"{key}.statistics" for key in ASKING} <= asking, (
        "config.yaml is as composed"
    )
    resumed(tmp_path / "stopped", run, 9, *WORDS)
    model: Any = seedbed.load(run, trust=["tests"])
    assert model.given == found
    assert capsys.readouterr().out.count(CALL) == 1, "of the run that was stopped"
    plain = trained(tmp_path / "plain", *WORDS, "~data.statistics")
    first, second = (record.read_fingerprints(each)[0] for each in (run, plain))
    assert first["sample_ids"] == second["sample_ids"]
    assert first["batch"] != second["batch"]


SWITCHES = """
import json
from seedbed import environment
print(json.dumps(environment.interpreter()))
"""


@pytest.mark.long
def test_switches_of_the_interpreter_are_recorded() -> None:
    """By option or by variable; another one can alter bits. Negative control: none."""
    usual = environment.interpreter()
    assert not any(
        usual[name] for name in ("optimize", "dev_mode", "warnings_as_errors")
    )
    assert usual["text_encoding"].upper() == "UTF-8"
    words = ("-O", "-W", "error::BytesWarning", "-c", SWITCHES)
    variables = {
        "PYTHONDEVMODE": "1",
        "PYTHONUTF8": "0",
        "LC_ALL": "C",
        "PYTHONCOERCECLOCALE": "0",
    }
    [line] = printed(*words, environment={**os.environ, **variables})
    other = json.loads(line)
    assert (other["optimize"], other["dev_mode"], other["warnings_as_errors"]) == (
        1,
        True,
        True,
    )
    assert other["text_encoding"] != usual["text_encoding"]
    origins = [
        record.Origin({}, {"interpreter": switches}) for switches in (usual, other)
    ]
    assert {each.key for each in record.changes(*origins) if each.alters_bits} == {
        f"interpreter.{name}" for name in usual
    }


@pytest.mark.long
def test_a_run_is_not_resumed_without_the_switches_of_the_interpreter(
    tmp_path: Path,
) -> None:
    """Assertions may have been left out. Negative control: with them."""
    folder = tmp_path / "run"
    optimized = {"PYTHONOPTIMIZE": "1"}
    words = (
        *ADDING,
        "data.train.samples=128",
        "schedule=constant",
        "trainer.max_epochs=1",
    )
    longer = ("scripts/resume.py", str(folder), "trainer.max_epochs=2")
    done = train(folder, *words, "determinism.threads=1", environment=optimized)
    assert done.returncode == 0, done.stderr
    assert "interpreter.optimize 1 -> 0" in refusal(command(*longer))
    assert command(*longer, environment=optimized).returncode == 0
