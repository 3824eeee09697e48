"""Predictions for new rows: of a file without targets, in the bits of the run's own
test."""

import csv
import json
import shutil
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import seedbed
from seedbed import record
from seedbed.errors import InputError
from seedbed.tools import predict
from tests import tiny
from tests.made_up_runs import contents
from tests.running import command, made_once, refusal, trained

SCRIPT = "scripts/predict.py"
TRUST = ("--trust", "tests.tiny")


def spec(file: Path | str, **more: object) -> dict[str, object]:
    return {
        "_target_": "tests.tiny.data.Rows",
        "file": str(file),
        "statistics": None,
        **more,
    }


def write_rows(file: Path, rows: int, target: bool = True, seed: int = 0) -> Path:
    """Write a CSV file of numbers x0 to x7, not normalised, with or without their
    classes."""
    numbers = 100 + 7 * torch.randn(
        rows, tiny.FEATURES, generator=torch.manual_seed(seed)
    )
    with open(file, "w", newline="") as lines:
        writer = csv.writer(lines)
        names = [f"x{column}" for column in range(tiny.FEATURES)]
        writer.writerow([*names, "target"] if target else names)
        for row in numbers.tolist():
            cells = [repr(number) for number in row]
            writer.writerow([*cells, int(row[0] > 100)] if target else cells)
    return file


@pytest.fixture(scope="module")
def run(shared: Path) -> Path:
    """Return a run of rows in files, which its statistics normalise; 53 rows are
    tested."""

    def train(folder: Path) -> None:
        files = [
            write_rows(folder / f"{n}.csv", 48 + 5 * (n == 2), seed=n) for n in range(3)
        ]
        splits = ("train", "validation", "test")
        data = tiny.DATA | {
            k: spec(file) for k, file in zip(splits, files, strict=True)
        }
        data["statistics"] = {"_target_": "tests.tiny.data.mean_and_deviation"}
        trained(folder / "run", *tiny.overrides(tiny.DENSE, data))

    return made_once(shared / "predict", train) / "run"


def table(file: Path) -> list[dict[str, str]]:
    with open(file, newline="") as lines:
        return list(csv.DictReader(lines))


def test_rows_without_targets_have_the_bits_of_the_test(
    run: Path, tmp_path: Path
) -> None:
    """Predictions and probabilities of all samples are those of test_predictions.csv,
    from real processes and for any number of loader workers; the run stays unchanged.
    Negative control: other rows have other ones."""
    before = contents(run)
    rows = table(run.parent / "2.csv")
    new = tmp_path / "new.csv"
    with open(new, "w", newline="") as lines:
        writer = csv.DictWriter(lines, [name for name in rows[0] if name != "target"])
        writer.writeheader()
        writer.writerows(
            {k: x for k, x in row.items() if k != "target"} for row in rows
        )
    found = {}
    for workers in (0, 2):
        out = tmp_path / f"{workers}.csv"
        words = (
            f"data.test.file={new}",
            f"data.num_workers={workers}",
            "--out",
            str(out),
        )
        done = command(SCRIPT, str(run), *TRUST, *words)
        assert done.returncode == 0, done.stderr
        found[workers] = table(out)
    recorded = [
        {key: cell for key, cell in row.items() if key != "target"}
        for row in table(run / "test_predictions.csv")
    ]
    assert found[0] == found[2] == recorded
    assert {*recorded[0]} == {
        "sample_id",
        "prediction",
        "name",
        *map("probability_{}".format, range(3)),
    }
    assert contents(run) == before
    other = write_rows(tmp_path / "other.csv", 53, target=False, seed=9)
    out = tmp_path / "other_predictions.csv"
    done = command(
        SCRIPT, str(run), *TRUST, f"data.test.file={other}", "--out", str(out)
    )
    assert done.returncode == 0, done.stderr
    assert [row["probability_0"] for row in table(out)] != [
        r["probability_0"] for r in recorded
    ]


def test_a_data_set_of_ones_own_is_predicted(run: Path) -> None:
    """Inputs alone, pairs, a list or a stream: the outputs are those of `seedbed.load`,
    the probabilities those of predict.py up to the rounding of other flags."""
    rows = table(run / "test_predictions.csv")
    samples = seedbed.data(run, "test", trust=["tests.tiny"])
    pairs = seedbed.predict(run, samples, trust=["tests.tiny"])
    assert isinstance(pairs.predictions, Tensor)
    assert isinstance(pairs.probabilities, Tensor)
    assert pairs.predictions.tolist() == [int(row["prediction"]) for row in rows]
    recorded = torch.tensor(
        [[float(row[f"probability_{n}"]) for n in range(3)] for row in rows]
    )
    torch.testing.assert_close(pairs.probabilities, recorded)
    inputs = [samples[index][0] for index in range(len(samples))]

    class Stream(torch.utils.data.IterableDataset[Tensor]):
        def __iter__(self) -> Iterator[Tensor]:
            yield from inputs

    others = ([(x, None) for x in inputs], [(x, 99) for x in inputs])
    for given in (inputs, *others, Stream()):
        alone = seedbed.predict(run, given, trust=["tests.tiny"])
        assert torch.equal(alone.outputs, pairs.outputs)
    model = seedbed.load(run, trust=["tests.tiny"])
    with torch.no_grad():
        assert torch.equal(pairs.outputs[:16], model(torch.stack(inputs[:16])))


def stack(samples: list[dict[str, Tensor]]) -> tuple[Tensor, Tensor]:
    """Make a batch of dictionaries."""
    return (
        torch.stack([sample["x"] for sample in samples]),
        torch.stack([sample["y"] for sample in samples]),
    )


class Named(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Samples as dictionaries."""

    def __init__(self, split: str) -> None:
        draws = torch.Generator().manual_seed(len(split))
        self.values = torch.randn(24, tiny.FEATURES, generator=draws)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": self.values[index], "y": torch.tensor(index % 3)}


def test_samples_that_the_users_function_collates_have_the_bits_of_the_test(
    tmp_path: Path,
) -> None:
    data = tiny.DATA | {
        split: {"_target_": f"{__name__}.Named", "split": split}
        for split in ("train", "validation", "test")
    }
    data["collate"] = f"{__name__}.stack"
    trained(tmp_path / "run", *tiny.overrides(tiny.DENSE, data))
    out = tmp_path / "out.csv"
    trust = ("--trust", __name__, "--trust", "tests.tiny")
    done = command(SCRIPT, str(tmp_path / "run"), *trust, "--out", str(out))
    assert done.returncode == 0, done.stderr
    recorded = [
        {key: cell for key, cell in row.items() if key != "target"}
        for row in table(tmp_path / "run" / "test_predictions.csv")
    ]
    assert table(out) == recorded


class Twos(torch.utils.data.Dataset[Any]):
    """Samples of two inputs, with or without a target."""

    def __init__(self, split: str, has_target: bool = True) -> None:
        draws = torch.Generator().manual_seed(len(split))
        self.values = torch.randn(24, 2, tiny.FEATURES, generator=draws)
        self.has_target = has_target

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> Any:
        both = tuple(self.values[index])
        return (both, index % 3) if self.has_target else both


class OfTwo(torch.nn.Linear):
    """A model of two inputs."""

    def __init__(self) -> None:
        super().__init__(2 * tiny.FEATURES, tiny.CLASSES)

    def forward(self, inputs: Any) -> Tensor:
        first, second = inputs
        return super().forward(torch.cat([first, second], dim=1))


def test_two_values_are_inputs_if_the_run_has_two(tmp_path: Path) -> None:
    """With and without targets, the predictions are the same. Negative control: without
    the number of inputs in the record, the second is taken for a target."""
    data = tiny.DATA | {
        split: {"_target_": f"{__name__}.Twos", "split": split}
        for split in ("train", "validation", "test")
    }
    model = {"name": "of_two", "_target_": f"{__name__}.OfTwo"}
    trained(tmp_path / "run", *tiny.overrides(model, data))
    tables = []
    for has_target in ("true", "false"):
        out = tmp_path / f"{has_target}.csv"
        words = (f"+data.test.has_target={has_target}", "--out", str(out))
        done = command(SCRIPT, str(tmp_path / "run"), "--trust", __name__, *words)
        assert done.returncode == 0, done.stderr
        tables.append(table(out))
    assert tables[0] == tables[1]
    alone = Twos("test", has_target=False)
    found = seedbed.predict(tmp_path / "run", alone, trust=[__name__])
    assert isinstance(found.predictions, Tensor)
    assert found.predictions.tolist() == [int(row["prediction"]) for row in tables[0]]
    summary = record.read_summary(tmp_path / "run")
    assert summary.pop("inputs") == 2
    (tmp_path / "run" / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(InputError, match="samples: expected such as the run's"):
        seedbed.predict(tmp_path / "run", alone, trust=[__name__])


def test_one_value_in_a_tuple_is_the_input(run: Path) -> None:
    """As `TensorDataset(inputs)` has it. What is read once is refused."""
    rows = torch.randn(5, tiny.FEATURES)
    how: dict[str, Any] = {"trust": ["tests.tiny"]}
    expected = seedbed.predict(run, rows, **how)
    alone = seedbed.predict(run, torch.utils.data.TensorDataset(rows), **how)
    assert torch.equal(alone.outputs, expected.outputs)
    with pytest.raises(InputError, match="read again, got generator"):
        seedbed.predict(run, (row for row in rows), **how)


def text_of(lines: list[str]) -> str:
    return "\n".join([*lines, ""])


def test_rows_that_do_not_fit_are_refused_in_one_line(
    run: Path, tmp_path: Path
) -> None:
    """Another number of columns, texts, missing values, no rows: nothing is written."""
    good = write_rows(tmp_path / "good.csv", 20, target=False).read_text().splitlines()
    files = {
        "must match the size of tensor b (8)": [
            line.rpartition(",")[0] for line in good
        ],
        "could not convert string to float: 'x": [
            *good[:3],
            "x" + good[3][1:],
            *good[4:],
        ],
        "NaN for sample 2; look for missing": [
            *good[:3],
            "nan," + good[3].partition(",")[2],
        ],
        "expected such as the run's": good[:1],
    }
    for number, (expected, lines) in enumerate(files.items()):
        file = tmp_path / f"bad{number}.csv"
        out = tmp_path / f"out{number}.csv"
        file.write_text(text_of(lines))
        done = command(
            SCRIPT, str(run), *TRUST, f"data.test.file={file}", "--out", str(out)
        )
        line = refusal(done)
        assert expected in line, line
        assert line.startswith("samples: expected "), line
        assert not out.exists()
    with pytest.raises(
        InputError, match=r"got inputs float32 \(2, 7\) with RuntimeError: .*mat1"
    ):
        seedbed.predict(run, torch.zeros(2, 7), trust=["tests.tiny"])


def test_classes_of_outputs_that_are_no_numbers_are_refused(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a task has no probabilities that would show it."""
    monkeypatch.setattr(predict, "probabilities_of", lambda *_: None)
    rows = torch.zeros(3, tiny.FEATURES)
    seedbed.predict(run, rows, trust=["tests.tiny"])
    rows[1, 0] = torch.nan
    with pytest.raises(InputError, match="NaN for sample 1"):
        seedbed.predict(run, rows, trust=["tests.tiny"])


def test_a_table_is_written_as_its_name_says(run: Path, tmp_path: Path) -> None:
    """Parquet only if pyarrow is installed; no other format, and no file in a run
    folder."""
    words = (str(run), *TRUST, "--out")
    assert "expected a file named *.csv" in refusal(
        command(SCRIPT, *words, f"{tmp_path}/a.txt")
    )
    assert "outside runs" in refusal(command(SCRIPT, *words, str(run / "a.csv")))
    done = command(SCRIPT, *words, str(tmp_path / "a.parquet"))
    if find_spec("pyarrow") is None:
        assert "pip install pyarrow" in refusal(done)
        return
    parquet = (
        import_module("pyarrow.parquet").read_table(tmp_path / "a.parquet").to_pylist()
    )
    rows = table(run / "test_predictions.csv")
    assert [repr(row["probability_0"]) for row in parquet] == [
        r["probability_0"] for r in rows
    ]


def test_a_strangers_run_predicts_nothing_without_trust(
    run: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    with open(copy / "config.yaml", "a") as file:
        file.write("# not as its mark says\n")
    out = tmp_path / "out.csv"
    assert "--trust tests.tiny" in refusal(
        command(SCRIPT, str(copy), "--out", str(out))
    )
    with pytest.raises(InputError, match=r"--trust tests\.tiny"):
        seedbed.predict(copy, [torch.zeros(tiny.FEATURES)])
