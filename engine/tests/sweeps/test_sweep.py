"""Laws of the report over a sweep, on made-up run folders."""

import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from matplotlib.image import imread

from seedbed.errors import InputError
from seedbed.sweeps import comparison, plots, promises, report, statistics
from seedbed.sweeps import groups as sweep_groups
from seedbed.sweeps import plan as sweep_plan
from seedbed.sweeps import summary as sweep_summary
from seedbed.sweeps.differences import differences
from tests import pictures
from tests.fake_runs import write_run, write_sweep
from tests.made_up_runs import ENVIRONMENT

ROOT = Path(__file__).resolve().parents[3]
ACCURACIES = (0.981, 0.984, 0.979, 0.990, 0.986)


@pytest.fixture(autouse=True)
def well_drawn() -> Iterator[None]:
    with pictures.checked():
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a sweep over five seeds."""
    for seed, accuracy in enumerate(ACCURACIES):
        write_run(tmp_path / "sweep" / f"{seed}_seed={seed}", seed, accuracy=accuracy)
    return tmp_path / "sweep"


def described(folder: Path) -> str:
    """Return the report's text without drawing its picture."""
    found = sweep_groups.read(folder)
    return report.describe(found, [sweep_summary.summarise(group) for group in found.groups])


def reported(folder: Path) -> str:
    """Write the report's files; return its text."""
    return report.write(sweep_groups.read(folder))


def lost(folder: Path) -> list[str]:
    """Return a line for each run that does not count, with the reason."""
    return [f"{run.name}: {run.problem}" for run in sweep_groups.read(folder).lost]


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run scripts/sweep_report.py."""
    words = [sys.executable, str(ROOT / "scripts" / "sweep_report.py"), *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def edit_summary(run: Path, **changes: object) -> None:
    """Change entries of a run's summary.json."""
    path = run / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_report_holds_the_statistics_of_the_runs(folder: Path) -> None:
    """Checked against NumPy; minimum and maximum are named with their seeds."""
    [group] = sweep_groups.read(folder).groups
    summary = sweep_summary.summarise(group)
    assert summary.n == 5
    assert summary.mean == pytest.approx(np.mean(ACCURACIES))
    assert summary.sd == pytest.approx(np.std(ACCURACIES, ddof=1))
    assert summary.median == 0.984
    assert summary.interquartile_mean == pytest.approx(np.mean([0.981, 0.984, 0.986]))
    assert (summary.minimum_seed, summary.maximum_seed) == ("2", "3")
    text = described(folder)
    for expected in ("98.400", "0.430", "97.900 (2)", "99.000 (3)"):
        assert expected in text
    assert "Seeds per sweep that show a difference of two without common seeds (" in text
    assert "\n- 0.1 points with about 292 unpaired seeds, 0.5 points with about " in text
    assert text.startswith("test accuracy (%)\n\n| group")


def test_the_metric_of_a_report_can_be_chosen(folder: Path) -> None:
    """Of the runs' own; which way is better is known of a loss, and of what the runs followed."""
    [group] = sweep_groups.read(folder, "test_loss").groups
    assert (set(group.values.values()), group.higher_is_better, plots.column_of(group)) == (
        {0.1}, False, "loss",
    )  # fmt: skip
    [usual] = sweep_groups.read(folder).groups
    assert (usual.metric, usual.higher_is_better, plots.column_of(usual)) == (
        "test_accuracy",
        True,
        "metric",
    )
    done = command(folder, "--metric", "validation_loss")
    assert done.returncode == 2
    expected = "--metric: expected one of test_accuracy, test_loss, validation_accuracy, got valid"
    assert expected in done.stderr
    for run in folder.glob("*_seed=*"):
        metrics = json.loads((run / "summary.json").read_text())["metrics"]
        edit_summary(run, metrics=metrics | {"test_f1": 0.5})
    assert command(folder, "--metric", "test_f1").stdout.startswith("test f1\n")
    done = command(folder, folder, "--metric", "test_f1")
    assert (done.returncode, "no record says whether more is better" in done.stderr) == (2, True)


def widest(text: str) -> int:
    return max(map(len, text.splitlines()))


def test_a_report_fits_a_terminal(folder: Path, tmp_path: Path) -> None:
    """Long names of groups are listed above the tables; control: they would make them too wide."""
    assert widest(described(folder)) <= 100
    for value in ("first", "second"):
        for seed in range(3):
            name = f"{'long ' * 10}{value}"
            write_run(tmp_path / "two" / f"{value}_{seed}", seed, model=name)
    found = sweep_groups.read(tmp_path / "two")
    summaries = [sweep_summary.summarise(group) for group in found.groups]
    names = [summary.group for summary in summaries]
    assert widest(report.groups_table(names, summaries)) > 100
    listed, *tables = report.summary_tables(summaries)
    assert listed == f"1. {names[0]}\n2. {names[1]}"
    assert max(map(widest, tables)) <= 100


def test_configurations_of_a_grid_are_compared_seed_by_seed(tmp_path: Path) -> None:
    """As two sweeps are: the spread over the seeds that they share is not in the difference."""
    for model, gain in (("lstm", 0.0), ("rnn", 0.01)):
        for seed, accuracy in enumerate((0.90, 0.95, 0.80)):
            place = tmp_path / "grid" / f"{model}_{seed}"
            write_run(
                place, seed, model=model, accuracy=accuracy + gain + 0.0001 * seed * (gain > 0)
            )
    text = described(tmp_path / "grid")
    row = next(line for line in text.splitlines() if "3 pairs with the same seeds" in line)
    cells = [cell.strip() for cell in row.split("|")][1:5]
    assert cells == ["model=rnn", "3 pairs with the same seeds", "+1.010", "0.010"]
    write_run(tmp_path / "grid" / "lone", 7, model="gru", accuracy=0.9)
    assert "model=gru | 3 pairs" not in described(tmp_path / "grid"), "one run is no comparison"


def test_a_loss_has_no_columns_of_accuracies(tmp_path: Path) -> None:
    """They would be empty, and explained at length; negative control: an accuracy has them."""
    for seed in range(3):
        right = [True] * 9 + [False]
        write_run(tmp_path / "sweep" / str(seed), seed, accuracy=0.9, right=right)
    found = sweep_groups.read(tmp_path / "sweep", "test_loss")
    text = report.describe(found, [sweep_summary.summarise(group) for group in found.groups])
    assert "new test set" not in text
    assert "% of the mean with about" in text
    assert "new test set" in described(tmp_path / "sweep")


def test_report_writes_its_four_files(folder: Path) -> None:
    """A row per run with every float in full, one per group, Markdown, and a picture."""
    text = reported(folder)
    rows = list(csv.DictReader((folder / "sweep.csv").read_text().splitlines()))
    assert [float(row["test_accuracy"]) for row in rows] == list(ACCURACIES)
    assert [row["seeds.init"] for row in rows] == ["0", "1", "2", "3", "4"]
    [group] = csv.DictReader((folder / "groups.csv").read_text().splitlines())
    assert float(group["mean"]) == np.mean(sorted(ACCURACIES))
    assert text in (folder / "report.md").read_text()
    assert imread(folder / "sweep.png").std() > 0.04  # of 1


def test_report_does_not_depend_on_when_it_is_made(folder: Path, tmp_path: Path) -> None:
    """Once more, and on a copy whose jobs are numbered otherwise: the same numbers."""
    first = reported(folder)
    assert reported(folder) == first
    for seed in range(5):
        shutil.copytree(folder / f"{seed}_seed={seed}", tmp_path / "copy" / f"{9 - seed}")
    assert reported(tmp_path / "copy") == first


@pytest.mark.parametrize("setting", ["error", "warn"])
def test_bits_are_promised_by_what_a_preset_does_and_not_by_its_name(
    folder: Path, setting: str
) -> None:
    """Two runs of seed 0 with other weights are a broken promise under `error`, and not under
    `warn`, both in a preset that is called strict."""
    write_run(folder / "5_seed=0", 0, accuracy=0.5, weights="f" * 16)
    for path in folder.glob("*/config.yaml"):
        path.write_text(
            path.read_text().replace("nondeterministic: error", f"nondeterministic: {setting}")
        )
    assert ("NOISE FLOOR" in described(folder)) == (setting == "error")


def test_a_seed_inside_a_list_of_transforms_makes_no_other_configuration(tmp_path: Path) -> None:
    """Runs of several seeds are one group; negative control: another size of a transform."""
    for name, seed, size in (("0", 0, 4), ("1", 1, 4), ("2", 2, 5)):
        path = write_run(tmp_path / name, seed, accuracy=0.9) / "config.yaml"
        transforms = f"  transforms:\n  - seed: {seed}\n    size: {size}\n"
        path.write_text(path.read_text().replace("data:\n", f"data:\n{transforms}"))
    assert [len(group.runs) for group in sweep_groups.read(tmp_path).groups] == [2, 1]


def test_report_changes_with_a_run(folder: Path) -> None:
    """Negative control: one accuracy more or less shows."""
    first = described(folder)
    write_run(folder / "5_seed=5", 5, accuracy=0.985)
    assert described(folder) != first


def test_report_loads_neither_torch_nor_a_picture_library(folder: Path) -> None:
    """Reading and describing a sweep start in a moment."""
    code = (
        "import sys; from pathlib import Path; from seedbed.sweeps import groups, report\n"
        "report.describe(groups.read(Path(sys.argv[1])), [])\n"
        "assert not {'torch', 'matplotlib', 'pandas'} & set(sys.modules), 'slow'\n"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True)


@pytest.mark.parametrize("status", ["failed", "interrupted", "running"])
def test_runs_that_did_not_finish_are_named_and_do_not_count(folder: Path, status: str) -> None:
    """They change no number, and nobody has to look for them."""
    before = sweep_summary.summarise(sweep_groups.read(folder).groups[0])
    run = write_run(folder / "5_seed=5", 5, accuracy=0.1, status=status, error="loss: not finite")
    after = sweep_groups.read(folder)
    assert sweep_summary.summarise(after.groups[0]) == before
    text = described(folder)
    assert text.startswith("1 of 6 runs do not count:\n- 5_seed=5: " + status)
    assert lost(folder) == [f"{run.name}: {after.lost[0].problem}"]
    assert "5_seed=5" in report.runs_csv(after)


def test_finished_runs_count(folder: Path) -> None:
    """Negative control: the same run counts once it has finished."""
    write_run(folder / "5_seed=5", 5, accuracy=0.1)
    assert sweep_summary.summarise(sweep_groups.read(folder).groups[0]).minimum == 0.1
    assert lost(folder) == []


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("summary.json", "{"),
        ("summary.json", "[]"),
        ("summary.json", '{"format_version": 99}'),
        ("summary.json", '{"format_version": 1, "status": "finished"}'),
        ("config.yaml", "seed: ["),
        ("config.yaml", "seed: 5"),
        ("config.yaml", "\x00"),
        ("config.yaml", "!!python/object/apply:os.system ['true']"),
    ],
)
def test_damaged_runs_are_named_and_do_not_count(folder: Path, file: str, content: str) -> None:
    """A record that cannot be read takes no other with it."""
    run = write_run(folder / "5_seed=5", 5)
    (run / file).write_text(content)
    assert described(folder).startswith("1 of 6 runs do not count:\n- 5_seed=5: unreadable: ")


def test_damaged_tables_cost_only_what_stood_in_them(folder: Path) -> None:
    """Without one run's metrics.csv there is no curve, and still a report."""
    (folder / "3_seed=3" / "metrics.csv").write_text("step,epoch\n1")
    (folder / "3_seed=3" / "test_predictions.csv").write_text("sample_id,target,prediction\n1,")
    assert "98.400" in reported(folder)


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), "much"])
def test_runs_without_a_finite_metric_do_not_count(folder: Path, value: object) -> None:
    """They are named with the metric that they lack."""
    metrics = {"test_accuracy": value, "validation_accuracy": value}
    edit_summary(write_run(folder / "5_seed=5", 5), metrics=metrics)
    assert lost(folder) == ["5_seed=5: has no finite test_accuracy"]


def test_jobs_that_left_no_folder_are_named(folder: Path) -> None:
    """A job that was refused, or never started, is found by the sweep's plan."""
    (folder / "multirun.yaml").write_text(
        "hydra:\n  sweeper:\n"
        "    _target_: hydra._internal.core_plugins.basic_sweeper.BasicSweeper\n"
        "    params:\n      seed: range(0,7)\n  overrides:\n    task: [data=mnist5k]\n"
        "  sweep:\n    subdir: ${hydra.job.num}_${hydra.job.override_dirname}\n"
    )
    (folder / "6_seed=6").mkdir()
    (folder / "6_seed=6/refused.txt").write_text("seed: expected \x1b[1mless\n")
    assert lost(folder) == [
        "5_seed=5,data=mnist5k: never started",
        "6_seed=6,data=mnist5k: refused: seed: expected \\x1b[1mless",
    ]
    assert [run.refused for run in sweep_groups.read(folder).lost] == [False, True]


def test_a_sweep_without_curves_has_no_panel_for_them(folder: Path, tmp_path: Path) -> None:
    """One validation is no curve: the picture is half as wide as the one with ten."""
    for seed in range(3):
        write_run(tmp_path / "short" / f"{seed}_seed={seed}", seed, epochs=1)
    for each in (folder, tmp_path / "short"):
        reported(each)
    wide, narrow = (imread(each / "sweep.png").shape for each in (folder, tmp_path / "short"))
    assert wide[1] == 2 * narrow[1]
    assert wide[0] == narrow[0]


def test_different_configurations_are_shown_apart(folder: Path) -> None:
    """The keys that differ are named; each group keeps its own numbers."""
    for seed in range(5):
        write_run(folder / f"{5 + seed}", seed, model="lstm", accuracy=0.9 + 0.001 * seed)
    groups = sweep_groups.read(folder).groups
    assert [group.label for group in groups] == ["model=cnn", "model=lstm"]
    assert [len(group.runs) for group in groups] == [5, 5]
    text = described(folder)
    assert "2 configurations, shown apart. They differ in: model.name." in text


def test_seeds_in_the_configuration_of_a_class_are_still_seeds(folder: Path) -> None:
    """`data.train.seed: ${seeds.split}` does not make another configuration."""
    write_run(folder / "5_split", 5, seeds={"split": 3})
    [group] = sweep_groups.read(folder).groups
    assert [run.seeds[-2] for run in group.runs] == [()] * 6


def test_seeds_in_lists_are_seeds_too(folder: Path) -> None:
    """One that follows a stream and one that does not; a text is a setting."""
    for run in folder.iterdir():
        seed = run.name[0]
        lines = f"model:\n  seed: none\n  parts:\n    seeds: [{seed}, 1{seed}]\n"
        path = run / "config.yaml"
        path.write_text(path.read_text().replace("model:\n", lines))
    [group] = sweep_groups.read(folder).groups
    assert sorted(run.seeds[-2] for run in group.runs) == [
        (("model.parts.seeds.1", 10 + seed),) for seed in range(5)
    ]
    assert group.settings["model.seed"] == "none"
    assert sweep_summary.summarise(group).n == 5


def with_nested_seed(run: Path, seed: int) -> Path:
    """Give the class of the training data a seed that follows no stream."""
    path = run / "config.yaml"
    path.write_text(path.read_text().replace("train:\n    seed: 0", f"train:\n    seed: {seed}"))
    return run


def test_runs_whose_nested_seeds_differ_are_other_replicates(tmp_path: Path) -> None:
    """Never the same seeds, neither in a sweep nor in two; the runs that share one of both are not
    independent, as with streams. Control: the same nested seed twice."""
    drawn = np.random.default_rng(0).uniform(0.9, 0.99, (2, 2))
    for seed, nested in np.ndindex(2, 2):
        run = tmp_path / "a" / f"{seed}_{nested}"
        weights = f"{seed}{nested}" * 8
        write_run(run, seed, accuracy=float(drawn[seed, nested]), weights=weights)
        with_nested_seed(run, nested)
    text = reported(tmp_path / "a")
    assert "NOISE FLOOR" not in text
    assert "same seeds" not in text
    [group] = sweep_groups.read(tmp_path / "a").groups
    assert len(group.values) == 4
    rows = {row.name: row.runs for row in sweep_summary.sources(group)}
    assert rows["data.train.seed"] == 4
    best = divmod(int(drawn.argmax()), 2)
    named = f"{best[0]} data.train.seed={best[1]}" if best[0] != best[1] else str(best[0])
    assert sweep_summary.summarise(group).maximum_seed == named
    table = csv.DictReader((tmp_path / "a" / "sweep.csv").read_text().splitlines())
    assert [row["data.train.seed"] for row in table] == ["0", "1", "0", "1"]
    for seed in range(2):
        with_nested_seed(write_run(tmp_path / "b" / f"{seed}", seed, weights="f" * 16), 7)
    [other] = sweep_groups.read(tmp_path / "b").groups
    assert other.runs[0].configuration == group.runs[0].configuration
    assert not [found for found in differences(group, other) if found.paired]
    assert not promises.broken_promises([group, other])
    with_nested_seed(write_run(tmp_path / "a" / "again", 1, weights="f" * 16), 1)
    assert described(tmp_path / "a").startswith("NOISE FLOOR: 1 of 1 seeds that ran more than once")


def test_groups_without_a_common_metric_are_shown_apart(folder: Path) -> None:
    """Accuracy and mean squared error share a report and no axis."""
    metrics = {"test_mse": 0.003, "validation_mse": 0.003}
    for seed in range(2):
        run = write_run(folder / f"{5 + seed}", seed, model="lstm")
        edit_summary(run, metrics=metrics, metric_name="mse", task="regression")
    text = reported(folder)
    assert "no metric in common (test_accuracy, test_mse)" in text
    assert "0.003" in text


def test_one_seed_has_no_spread(tmp_path: Path) -> None:
    """It is said, and no interval is shown, however often the seed ran."""
    for job in range(3):
        write_run(tmp_path / str(job), 0)
    text = reported(tmp_path)
    assert "One seed only in this sweep: no spread and no interval" in text
    assert " to " not in text.split("\n\n")[0]
    write_run(tmp_path / "3", 1)
    assert "One seed only" not in reported(tmp_path)


def test_seeds_that_change_nothing_are_named(tmp_path: Path) -> None:
    """A seed that is not used is the oldest mistake there is."""
    for seed in range(3):
        write_run(tmp_path / str(seed), seed, weights="0" * 16)
    assert "All seeds ended with the same weights: init, order, augment" in described(tmp_path)


def test_same_seeds_with_different_bits_come_first(folder: Path) -> None:
    """Under `strict` a repeated seed that differs is the noise floor of all that follows."""
    write_run(folder / "5_seed=3", 3, accuracy=0.988, weights="f" * 16)
    text = described(folder)
    assert text.startswith("NOISE FLOOR: 1 of 1 seeds that ran more than once under determinism=")
    assert "differ by up to 0.200" in text
    assert command(folder).returncode == 1


def test_same_seeds_with_the_same_bits_are_no_finding(folder: Path) -> None:
    """Negative control: a repeated seed with the same bits counts once, and nothing is said."""
    before = sweep_summary.summarise(sweep_groups.read(folder).groups[0])
    write_run(folder / "5_seed=3", 3, accuracy=0.990)
    assert "NOISE FLOOR" not in described(folder)
    assert sweep_summary.summarise(sweep_groups.read(folder).groups[0]) == before
    assert command(folder).returncode == 0


def test_presets_that_promise_no_bits_break_no_promise(tmp_path: Path) -> None:
    """Under `fast` replicates are a measurement: their spread has a row of its own."""
    for job, accuracy in enumerate((0.98, 0.985, 0.99)):
        write_run(tmp_path / str(job), 0, preset="fast", accuracy=accuracy, weights=f"{job:016x}")
    text = described(tmp_path)
    assert "NOISE FLOOR" not in text
    assert "| same seeds | 3    | 0.500 |" in text


def test_spread_is_attributed_to_the_stream_that_varied(tmp_path: Path) -> None:
    """Initial weights move the accuracy, the order a tenth of it, dropout not at all."""
    effects = {"init": 0.004, "order": 0.0004, "dropout": 0.0}
    for stream, effect in effects.items():
        for seed in range(4):
            write_run(
                tmp_path / f"{stream}{seed}", 0, seeds={stream: seed},
                accuracy=0.98 + effect * seed,
            )  # fmt: skip
    [group] = sweep_groups.read(tmp_path).groups
    found = {source.name: source for source in sweep_summary.sources(group)}
    assert found.keys() == {"init", "order", "dropout", "same seeds"}
    for stream, effect in effects.items():
        assert found[stream].runs == 4
        assert found[stream].sd == pytest.approx(effect * np.std(range(4), ddof=1))
    low, high = found["init"].interval
    assert low < found["init"].sd < high
    assert "Where the spread of test accuracy (%) comes from" in described(tmp_path)


def test_streams_that_vary_together_have_a_row_of_their_own(tmp_path: Path) -> None:
    """Runs in which one stream varies do not count among those in which all do."""
    write_run(tmp_path / "base", 0, accuracy=0.98)
    for seed in (1, 2):
        write_run(tmp_path / f"init{seed}", 0, seeds={"init": seed}, accuracy=0.98)
        write_run(tmp_path / f"all{seed}", seed, accuracy=0.98 + 0.001 * seed)
    [group] = sweep_groups.read(tmp_path).groups
    found = {source.name: source for source in sweep_summary.sources(group)}
    assert found.keys() == {"init", "all together"}
    assert (found["init"].runs, found["init"].sd) == (3, 0)
    assert (found["all together"].runs, found["all together"].sd) == (3, pytest.approx(0.001))


def test_variance_sources_varies_each_source_ten_times(tmp_path: Path) -> None:
    """The ready experiment, read as Hydra reads it: one reference run for all sources."""
    experiment = yaml.safe_load((ROOT / "configs/experiment/variance_sources.yaml").read_text())
    sweeper = {"_target_": "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"}
    sweeper |= experiment["hydra"]["sweeper"]
    plan = {"sweeper": sweeper, "overrides": {"task": []}, "sweep": experiment["hydra"]["sweep"]}
    (tmp_path / "multirun.yaml").write_text(yaml.safe_dump({"hydra": plan}))
    for number, job in enumerate(sweep_plan.planned(tmp_path)):
        [override] = OverridesParser.create().parse_overrides(job)
        write_run(tmp_path / str(number), 0, seeds=override.value())
    found = sweep_groups.read(tmp_path)
    assert (len(found.runs), len(found.lost)) == (50, 0)
    counts = {source.name: source.runs for source in sweep_summary.sources(found.groups[0])}
    streams = ("init", "order", "augment", "dropout", "all together")
    assert counts == dict.fromkeys(streams, 10) | {"same seeds": 5}


@pytest.mark.parametrize(("scale", "clipped"), [(1.0, True), (100.0, False)])
def test_an_interval_of_shares_ends_where_shares_do(
    scale: float, clipped: bool, tmp_path: Path
) -> None:
    """At 100 %; negative control: what a loop of one's own calls accuracy may be in per cent."""
    for seed, accuracy in enumerate((0.934, 0.948, 0.999)):
        write_run(tmp_path / str(seed), seed, accuracy=scale * accuracy)
    high = sweep_summary.summarise(sweep_groups.read(tmp_path).groups[0]).interval_high
    assert high is not None
    assert (high == scale) == clipped
    assert clipped or high > scale


def test_seed_sweeps_attribute_nothing(folder: Path) -> None:
    """Negative control: where all streams move at once there is nothing to tell apart."""
    assert sweep_summary.sources(sweep_groups.read(folder).groups[0]) == []


def test_spread_of_chance_is_the_one_that_the_test_set_gives(tmp_path: Path) -> None:
    """Runs that miss hard samples by chance vary as much as independent errors do."""
    [group] = sweep_groups.read(write_sweep(tmp_path, 60)).groups
    summary = sweep_summary.summarise(group)
    assert summary.test_samples == 1000
    assert summary.sd == pytest.approx(summary.independent_errors_sd, rel=0.2)


def test_spread_of_bad_seeds_is_not(tmp_path: Path) -> None:
    """Negative control: where some seeds are worse as a whole, the test set does not explain it."""
    for seed in range(10):
        right = np.arange(1000) % 20 >= (5 if seed < 5 else 1)
        write_run(tmp_path / str(seed), seed, accuracy=float(right.mean()), right=right)
    [group] = sweep_groups.read(tmp_path).groups
    summary = sweep_summary.summarise(group)
    assert summary.sd is not None
    assert summary.independent_errors_sd is not None
    assert summary.independent_errors_sd < 0.2 * summary.sd


def test_sweeps_of_one_thing_are_not_told_apart(tmp_path: Path) -> None:
    """Seeds 0 to 9 and 10 to 19 of one configuration: no difference can be claimed."""
    draw = np.random.default_rng(0)
    for job in range(20):
        name, accuracy = "ab"[job // 10], 0.98 + 0.002 * draw.standard_normal()
        write_run(tmp_path / name / str(job), job, accuracy=accuracy)
    result = command(tmp_path / "a", tmp_path / "b")
    assert result.returncode == 0
    assert "they differ in nothing but seeds" in result.stdout
    assert "No difference can be claimed: with 10 and 10 seeds" in result.stdout
    assert " unpaired seeds a side to detect 0.1 points" in result.stdout


def test_better_sweeps_are_told_apart(tmp_path: Path) -> None:
    """Negative control: with one point more, the difference is claimed, and so is its direction."""
    draw = np.random.default_rng(0)
    for job in range(20):
        name, mean = ("a", 0.98) if job < 10 else ("b", 0.99)
        model = "cnn" if job < 10 else "lstm"
        accuracy = mean + 0.002 * draw.standard_normal()
        write_run(tmp_path / name / str(job), job, accuracy=accuracy, model=model)
    text = command(tmp_path / "a", tmp_path / "b").stdout
    assert "- model.name: cnn in A, lstm in B" in text
    assert "A difference can be claimed: B is better than A" in text
    assert "Probability that a run of B is better than a run of A: 1.00." in text
    assert "B is worse than A" in command(tmp_path / "b", tmp_path / "a").stdout


def test_matching_seeds_are_compared_in_pairs(tmp_path: Path) -> None:
    """A small gain shared by every seed is seen although the seeds lie far apart."""
    gains = (0.0012, 0.0008, 0.0011, 0.0009, 0.0010)
    for seed, gain in enumerate(gains):
        accuracy = 0.97 + 0.005 * seed
        write_run(tmp_path / "a" / str(seed), seed, accuracy=accuracy)
        write_run(tmp_path / "b" / str(seed), seed, accuracy=accuracy + gain, model="lstm")
    a, b = (sweep_groups.read(tmp_path / name).groups[0] for name in "ab")
    paired, unpaired = differences(a, b)
    assert (paired.paired, unpaired.paired) == (True, False)
    assert paired.mean == pytest.approx(unpaired.mean) == pytest.approx(np.mean(gains))
    assert unpaired.interval[0] < 0 < paired.interval[0]
    assert comparison.verdict(a, b, [paired]).startswith("A difference can be claimed")
    assert comparison.verdict(a, b, [unpaired]).startswith("No difference can be claimed")
    unsure = comparison.verdict(a, b, [replace(paired, interval=(-1.0, 1.0))])
    assert " paired seeds a side (the same in both) to detect 0.1 points" in unsure


def test_one_seed_a_side_claims_nothing(tmp_path: Path) -> None:
    """Nor do values without any spread."""
    write_run(tmp_path / "a" / "0", 0, accuracy=0.5)
    write_run(tmp_path / "b" / "0", 0, accuracy=0.9, model="lstm")
    compared = comparison.compare(*map(sweep_groups.read, (tmp_path / "a", tmp_path / "b")))
    assert "No difference can be claimed: one seed a side" in compared
    write_run(tmp_path / "a" / "1", 1, accuracy=0.3)
    write_run(tmp_path / "b" / "1", 1, accuracy=0.7, model="lstm")
    compared = comparison.compare(*map(sweep_groups.read, (tmp_path / "a", tmp_path / "b")))
    assert "No difference can be claimed: 2 seeds in both show no spread" in compared


def test_same_seeds_with_different_bits_come_first_in_a_comparison(folder: Path) -> None:
    """A promise can be broken between two sweeps of one configuration as well."""
    other = folder.parent / "other"
    for seed in range(5):
        write_run(other / str(seed), seed, accuracy=0.98, weights=f"{seed:016x}")
    result = command(folder, other)
    assert result.stdout.startswith("NOISE FLOOR: 5 of 5 seeds")
    assert result.returncode == 1


def test_sweeps_over_the_same_keys_are_compared_key_by_key(tmp_path: Path) -> None:
    """Two models in both sweeps: two comparisons, each under its name."""
    for name, gain in (("a", 0.0), ("b", 0.01)):
        for job in range(6):
            accuracy, model = 0.97 + 0.001 * (job % 3) + gain, ("cnn", "lstm")[job // 3]
            write_run(tmp_path / name / str(job), job % 3, accuracy=accuracy, model=model,
                      preset="fast" if gain else "strict")  # fmt: skip
    compared = comparison.compare(*map(sweep_groups.read, (tmp_path / "a", tmp_path / "b")))
    assert "## model=cnn" in compared
    assert "## model=lstm" in compared
    assert compared.count("- determinism.name: strict in A, fast in B") == 2


def test_sweeps_without_a_common_metric_are_refused(folder: Path) -> None:
    """Accuracy against mean squared error is no comparison."""
    other = folder.parent / "other"
    run = write_run(other / "0", 0, model="lstm")
    edit_summary(run, metrics={"test_mse": 0.003}, metric_name="mse")
    result = command(folder, other)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == (
        "error: metric: expected the same in both sweeps, got test_accuracy in A and test_mse "
        "in B; compare sweeps of one task\n"
    )


def test_sweeps_over_different_keys_are_refused(folder: Path) -> None:
    """One configuration has no counterpart in two."""
    other = folder.parent / "other"
    for job, model in enumerate(("cnn", "lstm")):
        write_run(other / str(job), 0, model=model)
    with pytest.raises(InputError, match="got model=cnn; model=lstm; compare sweeps of one"):
        comparison.compare(sweep_groups.read(folder), sweep_groups.read(other))


def test_sweeps_in_which_nothing_finished_are_refused_in_a_comparison(folder: Path) -> None:
    """A report on them names the runs; a comparison has nothing to say."""
    other = folder.parent / "other"
    write_run(other / "0", 0, status="failed")
    assert reported(other).startswith("1 of 1 runs do not count")
    with pytest.raises(InputError, match="expected finished runs in B, got none that count"):
        comparison.compare(sweep_groups.read(folder), sweep_groups.read(other))


@pytest.mark.parametrize("make", ["nothing", "empty", "a file", "a run"])
def test_what_is_no_sweep_is_refused(tmp_path: Path, make: str) -> None:
    """One line that says what to name instead, exit status 2."""
    path = tmp_path / "sweep"
    if make == "empty":
        path.mkdir()
    elif make == "a file":
        path.write_text("")
    elif make == "a run":
        write_run(path, 0)
    result = command(path)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "expected a folder of runs, got" in result.stderr
    assert "Traceback" not in result.stderr


def test_folders_that_cannot_be_written_are_named(folder: Path) -> None:
    """A folder where report.md should go stands for all that a disk may refuse."""
    (folder / "report.md").mkdir()
    result = command(folder)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "expected a folder that can be written, got Is a directory" in result.stderr


def test_help_shows_usage_and_an_example() -> None:
    """-h is enough to use the command."""
    result = command("-h")
    assert result.returncode == 0
    assert "usage: python scripts/sweep_report.py SWEEP [OTHER_SWEEP]" in result.stdout
    assert "example:" in result.stdout


def made_with(run: Path, patch: str = "", **environment: object) -> Path:
    """Say in a run's record what it was made with; what is not given is the same in every run."""
    whole = {**ENVIRONMENT, **environment}
    (run / "environment.json").write_text(json.dumps(whole))
    (run / "source.patch").write_text(patch)
    return run


PATCH = "diff --git a/a.py b/a.py\nindex 0000000..1234567 100644\n"
MADE_OTHERWISE = [
    ("versions.torch", {"versions": {**ENVIRONMENT["versions"], "torch": "2.14.0"}}),
    ("cpu.model", {"cpu": {"model": "Another", "threads": 2}}),
    ("git.commit", {"git": {**ENVIRONMENT["git"], "commit": "f" * 16}}),
    ("a.py", {"patch": PATCH}),
]


@pytest.mark.parametrize(("key", "change"), MADE_OTHERWISE)
def test_other_bits_of_other_code_or_machines_break_no_promise(
    folder: Path, key: str, change: dict[str, Any]
) -> None:
    """What differs is named instead of a noise floor; exit status 0."""
    made_with(folder / "3_seed=3")
    made_with(write_run(folder / "5_seed=3", 3, accuracy=0.988, weights="f" * 16), **change)
    result = command(folder)
    assert result.returncode == 0, result.stderr
    assert "NOISE FLOOR" not in result.stdout
    assert f"have different bits, and were not made alike: {key} " in result.stdout


def test_other_bits_of_the_same_code_and_machine_break_the_promise(folder: Path) -> None:
    """Negative control: with the same record of both, it is the noise floor."""
    made_with(folder / "3_seed=3")
    made_with(write_run(folder / "5_seed=3", 3, accuracy=0.988, weights="f" * 16))
    text = described(folder)
    assert text.startswith("NOISE FLOOR: 1 of 1 seeds")
    assert "made alike" not in text


@pytest.mark.parametrize(("key", "change"), MADE_OTHERWISE)
def test_sweeps_made_otherwise_are_not_said_to_be_the_same(
    tmp_path: Path, key: str, change: dict[str, Any]
) -> None:
    """Two sweeps of one configuration: what code or machine differs in is named."""
    for seed in range(2):
        made_with(write_run(tmp_path / "a" / str(seed), seed))
        made_with(write_run(tmp_path / "b" / str(seed), seed), **change)
    sweeps = [sweep_groups.read(tmp_path / name) for name in "ab"]
    compared = comparison.compare(*sweeps)
    assert "same configuration" not in compared
    assert f"A and B differ in:\n- {key}: " in compared
    assert "same configuration" in comparison.compare(sweeps[0], sweeps[0])


def with_threads(run: Path, threads: int, blas: int | None = None) -> Path:
    """Say in a run's record that it ran with a number of threads, as a preset sets it."""
    path, variables = run / "config.yaml", {"OMP_NUM_THREADS": str(threads)}
    variables["OPENBLAS_NUM_THREADS"] = str(threads if blas is None else blas)
    settings = yaml.safe_load(path.read_text())
    settings["determinism"] |= {"threads": threads, "env": variables}
    path.write_text(yaml.safe_dump(settings))
    cpu = {**ENVIRONMENT["cpu"], "threads": threads}
    return made_with(run, cpu=cpu, env=variables, flags={"threads": threads})


def test_what_follows_from_a_setting_is_not_named_beside_it(tmp_path: Path) -> None:
    """Threads, and not what carries them; negative control: a variable with a value of its own."""
    for seed in range(2):
        for name, threads, blas in (("a", 2, None), ("b", 1, None), ("c", 1, 4)):
            with_threads(write_run(tmp_path / name / str(seed), seed), threads, blas)
    a, b, c = (sweep_groups.read(tmp_path / name).groups[0] for name in "abc")
    _, *changed = comparison.configuration_difference(a, b).splitlines()
    assert changed == ["- determinism.threads: 2 in A, 1 in B"]
    _, *more = comparison.configuration_difference(a, c).splitlines()
    own = "- determinism.env.OPENBLAS_NUM_THREADS: 2 in A, 4 in B"
    assert sorted(more) == [own, *changed]


def test_groups_are_named_after_the_setting_and_not_what_follows_from_it(tmp_path: Path) -> None:
    """Unless that leaves two with one name: then after all that differs."""
    for job, threads in enumerate((2, 1)):
        with_threads(write_run(tmp_path / str(job), job), threads)
    groups = sweep_groups.read(tmp_path).groups
    names = ["determinism.threads=2", "determinism.threads=1"]
    assert [group.label for group in groups] == names
    assert "They differ in: determinism.threads.\n" in described(tmp_path)
    with_threads(write_run(tmp_path / "2", 2), 1, blas=2)
    labels = [group.label for group in sweep_groups.read(tmp_path).groups]
    assert len(set(labels)) == 3
    assert all("OPENBLAS_NUM_THREADS=" in label for label in labels)


def test_a_run_that_went_on_with_other_code_is_not_said_to_be_the_same(tmp_path: Path) -> None:
    """Its environment.json only says what it ended with; summary.json knows more."""
    resumed = {"step": 3, "can_alter_bits": ["versions.torch"]}
    made_with(write_run(tmp_path / "a" / "0", 0))
    made_with(write_run(tmp_path / "b" / "0", 0, resumes=[resumed]))
    compared = comparison.compare(*(sweep_groups.read(tmp_path / name) for name in "ab"))
    assert "- resumed_with: None in A, [(3, ['versions.torch'])] in B" in compared


@pytest.mark.parametrize(("recorded", "claim"), [(True, "better"), (False, "worse")])
def test_which_of_two_metrics_is_better_is_what_the_record_says(
    tmp_path: Path, recorded: bool, claim: str
) -> None:
    """A metric of one's own may be called anything."""
    for job in range(12):
        name, mean = ("a", 0.5) if job < 6 else ("b", 0.9)
        metrics = {"test_own": mean + 0.01 * (job % 6)}
        write_run(tmp_path / name / str(job), job, model=name, metric_name="own",
                  metrics=metrics, higher_is_better=recorded)  # fmt: skip
    compared = comparison.compare(*(sweep_groups.read(tmp_path / name) for name in "ab"))
    assert f"B is {claim} than A" in compared


def test_a_mean_of_zero_is_reported_without_seeds_to_detect_a_share_of_it(tmp_path: Path) -> None:
    """A per cent of 0 is no difference that could be detected."""
    for job in range(6):
        metrics = {"test_own": 0.5 if job % 2 else -0.5}
        name = "ab"[job // 4]
        write_run(tmp_path / name / str(job), job, metric_name="own", metrics=metrics, model=name)
    sweeps = [sweep_groups.read(tmp_path / name) for name in "ab"]
    summary = sweep_summary.summarise(sweeps[0].groups[0])
    assert (summary.mean, summary.seeds_for_small_difference) == (0, None)
    compared = comparison.compare(*sweeps)
    assert "No difference can be claimed: with 4 and 2 seeds" in compared
    assert "contains zero.\n" in compared + "\n"
    assert "At this spread" not in compared


def test_how_the_work_is_done_makes_no_other_configuration(folder: Path) -> None:
    """A run that went on with more loader workers stays among its like; negative control: the
    batch size."""
    run = folder / "3_seed=3" / "config.yaml"
    text = run.read_text()
    run.write_text(text.replace("data:\n", "data:\n  num_workers: 4\n"))
    assert len(sweep_groups.read(folder).groups) == 1
    run.write_text(text.replace("data:\n", "data:\n  batch_size: 4\n"))
    assert len(sweep_groups.read(folder).groups) == 2


def test_an_empty_folder_of_a_job_counts_as_not_started(folder: Path) -> None:
    """Hydra makes it before the job is checked: the job is named, as if there were none."""
    (folder / "multirun.yaml").write_text(
        "hydra:\n  sweeper:\n"
        "    _target_: hydra._internal.core_plugins.basic_sweeper.BasicSweeper\n"
        "    params:\n      seed: range(0,6)\n  overrides:\n    task: []\n"
        "  sweep:\n    subdir: ${hydra.job.num}_${hydra.job.override_dirname}\n"
    )
    (folder / "5_seed=5").mkdir()
    assert lost(folder) == ["5_seed=5: never started"]


def test_runs_that_share_seeds_do_not_pass_for_independent_ones(tmp_path: Path) -> None:
    """Streams varied one at a time: number, spread and interval are of those varied together."""
    write_run(tmp_path / "base", 0, accuracy=0.98)
    for seed in (1, 2):
        write_run(tmp_path / f"init{seed}", 0, seeds={"init": seed}, accuracy=0.99)
    [group] = sweep_groups.read(tmp_path).groups
    assert sweep_summary.summarise(group).n == 3  # one stream: they differ in all that varies
    for seed in (1, 2):
        write_run(tmp_path / f"order{seed}", 0, seeds={"order": seed}, accuracy=0.97)
    [group] = sweep_groups.read(tmp_path).groups
    summary = sweep_summary.summarise(group)
    assert (summary.n, summary.sd, summary.seeds_for_small_difference) == (None, None, None)
    assert "| all   | - |" in described(tmp_path)
    for seed in (1, 2):
        seeds = {"init": seed, "order": seed}
        write_run(tmp_path / f"all{seed}", 0, seeds=seeds, accuracy=0.98 + 0.001 * seed)
    summary = sweep_summary.summarise(sweep_groups.read(tmp_path).groups[0])
    assert (summary.n, summary.mean) == (3, pytest.approx(0.981))
    assert summary.sd == pytest.approx(0.001)
    assert "are of\nthe runs in which all vary together" in reported(tmp_path)


def test_the_seeds_that_the_documentation_names_are_those_of_the_formula() -> None:
    """docs/benchmarks.md, for the spread that it measured."""
    needed = [statistics.seeds_to_detect(points, 0.262) for points in (0.1, 0.5)]
    text = (ROOT / "docs" / "benchmarks.md").read_text()
    assert f"takes {needed[0]} seeds in each of two sweeps, 0.5 points takes {needed[1]}." in text


def test_runs_that_share_seeds_claim_no_difference(tmp_path: Path) -> None:
    """Ten runs about one seed are not ten; negative control: those in which all streams vary
    together are."""
    for name, mean in (("a", 0.97), ("b", 0.98)):
        for job in range(1, 4):
            for stream in ("init", "order"):
                write_run(tmp_path / name / f"{stream}{job}", 0, seeds={stream: job}, model=name,
                          accuracy=mean + 0.0001 * job)  # fmt: skip
    a, b = (sweep_groups.read(tmp_path / name).groups[0] for name in "ab")
    assert differences(a, b) == []
    assert "claimed: streams vary one at a time" in comparison.verdict(a, b, [])
    for name, mean in (("a", 0.97), ("b", 0.98)):
        for job in range(1, 4):
            write_run(tmp_path / name / f"all{job}", 0, seeds={"init": job, "order": job},
                      model=name, accuracy=mean + 0.0001 * job**2)  # fmt: skip
    a, b = (sweep_groups.read(tmp_path / name).groups[0] for name in "ab")
    assert [(each.n_a, each.n_b) for each in differences(a, b)] == [(3, 3), (3, 3)]
