"""The HTML page of runs: what it holds, that records stay data in it, and its use in a
browser.

The browser is Debian's Chromium, driven by playwright (make test-browser).
"""

import importlib.util
import json
import math
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from seedbed.errors import InputError
from seedbed.listing import page as page_module
from seedbed.listing import selection
from tests import made_up_runs
from tests.running import command, refusal

SCRIPT = "scripts/runs.py"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
HAS_BROWSER = (
    CHROMIUM is not None and importlib.util.find_spec("playwright") is not None
)
in_a_browser = pytest.mark.skipif(
    not HAS_BROWSER,
    reason=(
        "needs apt install chromium, and make test-browser, which installs playwright"
    ),
)
# Text that would run if a page took it for HTML; `pwned` tells whether any did.
EVIL = "</script><script>window.pwned=1</script><img src=x onerror='window.pwned=1'>"
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63f8cf"
    "c000000301010018dd8db00000000049454e44ae426082"
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of each of two learning rates, with curves; a stranger's; one that
    failed."""
    folder = tmp_path_factory.mktemp("page") / "runs"
    for rate in (0.1, 0.001):
        for seed in (2, 10):
            run = folder / f"lr={rate},seed={seed}"
            own = {"optimizer": {"lr": rate}}
            made_up_runs.write_result(
                run, seed, accuracy=0.9 + rate + seed / 1000, config=own
            )
            rows = made_up_runs.metrics(40)
            made_up_runs.write_csv(run / "metrics.csv", made_up_runs.FIELDS, rows)
            (run / "loss_curve.png").write_bytes(PNG)
    evil = {"model": {"name": EVIL, EVIL: 1}, "__proto__": {"pwned": 1}}
    made_up_runs.write_result(folder / "evil", 2, accuracy=0.5, config=evil, error=EVIL)
    failed = {"environment": {"data_sha256": None}, "status": "failed"}
    made_up_runs.write_result(folder / "failed", 2, **failed)
    (folder / "failed" / "loss_curve.png").symlink_to(folder.parent / "outside.png")
    (folder.parent / "outside.png").write_bytes(PNG)
    (folder / "evil" / "loss_curve.png").write_bytes(b"<svg onload='window.pwned=1'>")
    return folder


@pytest.fixture(scope="module")
def page(runs: Path) -> Path:
    out = runs.parent / "runs.html"
    done = command(SCRIPT, str(runs), "--html", str(out))
    assert done.returncode == 0, done.stderr
    return out


def data_of(page: Path) -> Any:
    [found] = re.findall(
        r'<script type="application/json" id="data">(.*)</script>\n<script>',
        page.read_text(),
    )
    return json.loads(found)


def test_the_page_has_all_values(runs: Path, page: Path) -> None:
    """Those that vary, per run, the others once; groups by everything but seeds;
    curves."""
    data = data_of(page)
    by_run = {Path(run["run"]).name: run for run in data["runs"]}
    assert by_run["lr=0.1,seed=2"]["optimizer.lr"] == 0.1
    assert by_run["failed"]["status"] == "failed"
    assert data["constant"]["data.name"] == "mnist5k"
    groups = dict(zip(by_run, data["groups"], strict=True))
    assert (
        groups["lr=0.1,seed=2"] == groups["lr=0.1,seed=10"] != groups["lr=0.001,seed=2"]
    )
    assert "data.name" not in data["columns"]
    assert {"run", "optimizer.lr", "validation_accuracy", "best_step"} <= {
        *data["columns"]
    }
    curves = dict(zip(by_run, data["curves"], strict=True))
    assert curves["lr=0.1,seed=2"]["validation loss"] == [
        [20, 40],
        [1, 2],
        [0.05, 0.025],
    ]


def test_records_are_data_in_the_page(page: Path) -> None:
    """No character of theirs can end the script element that has them; a file that is
    no picture, and one that a link names outside the run, is not in it. Negative
    control: the others' are."""
    text = page.read_text()
    assert text.count("<script") == 2
    assert "onerror" in text
    assert "<img" not in text
    assert "http" not in text.replace("http-equiv", "").replace(
        "http://www.w3.org/2000/svg", ""
    )
    data = data_of(page)
    assert EVIL in {run.get("model.name") for run in data["runs"]}
    pictures = {
        Path(run["run"]).name: p
        for run, p in zip(data["runs"], data["pictures"], strict=True)
    }
    assert pictures["evil"] == pictures["failed"] == []
    [[name, uri]] = pictures["lr=0.1,seed=2"]
    assert (name, uri[:22]) == ("loss_curve.png", "data:image/png;base64,")


def test_long_curves_are_thinned(tmp_path: Path) -> None:
    """To at most 1,000 points, the last one among them."""
    for steps in (1000, 1001, 2500):
        run = made_up_runs.write_run(tmp_path / str(steps), steps, fingerprints=[])
        assert (
            command(SCRIPT, str(run), "--html", str(tmp_path / "a.html")).returncode
            == 0
        )
        seen = data_of(tmp_path / "a.html")["curves"][0]["train loss"][0]
        assert (seen[0], seen[-1]) == (1, steps)
        assert 500 < len(seen) <= 1000


def test_the_page_is_not_written_into_a_run(runs: Path) -> None:
    inside = str(runs / "failed" / "a.html")
    assert "outside runs" in refusal(command(SCRIPT, str(runs), "--html", inside))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        # As root, in a container, Chromium has no sandbox to start.
        started = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"]
        )
        yield started
        started.close()


@pytest.fixture
def tab(browser: Any, page: Path) -> Iterator[Any]:
    with opened_page(browser, page) as tab:
        yield tab


@contextmanager
def opened_page(browser: Any, page: Path) -> Iterator[Any]:
    """Open a page. It must ask for no address, print no error and run nothing of a
    record."""
    opened = browser.new_page()
    problems = list[str]()
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda message: problems.append(message.text))
    asked = list[str]()
    opened.on("request", lambda request: asked.append(request.url))
    opened.goto(page.as_uri())
    yield opened
    assert opened.evaluate("window.pwned") is None
    assert opened.evaluate("({}).pwned") is None
    assert problems == []
    assert {url for url in asked if not url.startswith("data:")} == {page.as_uri()}
    opened.close()


def cells(tab: Any, key: str) -> list[str]:
    """Return the texts of a column of the table, from top to bottom."""
    headers = [
        text.rstrip("\u00d7 \u25b4\u25be")
        for text in tab.locator("th").all_inner_texts()
    ]
    at = headers.index(key) + 1
    texts = tab.locator(f"#runs tbody td:nth-child({at})").all_inner_texts()
    return [text.rpartition("/")[2] if key == "run" else text for text in texts]


@in_a_browser
def test_the_table_sorts(tab: Any) -> None:
    """By a click on a column, as numbers, and back by another; runs without a value are
    last."""
    header = tab.locator("th", has_text="optimizer.lr")
    header.click()
    assert cells(tab, "optimizer.lr") == [
        "0.001",
        "0.001",
        "0.003",
        "0.003",
        "0.1",
        "0.1",
    ]
    header.click()
    assert cells(tab, "optimizer.lr") == [
        "0.1",
        "0.1",
        "0.003",
        "0.003",
        "0.001",
        "0.001",
    ]
    tab.locator("th", has_text="validation_accuracy").first.click()
    assert cells(tab, "run")[-1] == "failed"


@in_a_browser
def test_the_table_filters_by_any_key(tab: Any) -> None:
    """As `--where` does; while a condition is unknown, the page says so and keeps the
    table."""

    def left(words: str) -> set[str]:
        tab.fill("#filter", words)
        return {*cells(tab, "run")}

    assert left("optimizer.lr<0.002") == {"lr=0.001,seed=2", "lr=0.001,seed=10"}
    assert left("optimizer.lr<0.002 seed=10") == {"lr=0.001,seed=10"}
    assert left("run=*evil") == {"evil"}
    assert left("status!=finished") == {"failed"}
    assert left("optimizer.betas=0.999 !error") >= {"failed", "lr=0.1,seed=2"}
    before = left("seed=10")
    assert left("seed=2 nowhere=1") == before
    assert tab.inner_text("#count") == "no run has the key nowhere"
    assert left("error=macro nowhere") == before
    assert "needs quotes" in tab.inner_text("#count")
    assert left("error='macro nowhere") == before
    assert tab.inner_text("#count").startswith("expected KEY=VALUE")
    assert len(left(" ")) == 6


@in_a_browser
def test_seeds_are_grouped(tab: Any) -> None:
    """A row has the mean and deviation over the seeds of everything else."""
    tab.fill("#filter", "optimizer.lr!=0.003")
    tab.check("#grouped")
    found = dict(
        zip(cells(tab, "optimizer.lr"), cells(tab, "validation_accuracy"), strict=True)
    )
    assert found == {
        "0.1": "1.006 \u00b1 0.0057 (2)",
        "0.001": "0.907 \u00b1 0.0057 (2)",
    }
    assert cells(tab, "run") == ["2 runs", "2 runs"]
    assert cells(tab, "seed") == ["10, 2", "10, 2"]


@in_a_browser
def test_chosen_runs_have_curves_differences_and_pictures(tab: Any) -> None:
    """Curves of all, overlaid; of two, what differs. Negative control: what is equal is
    not."""
    tab.fill("#filter", "optimizer.lr!=0.003 seed=2")
    for box in range(2):
        tab.locator("#runs tbody input").nth(box).check()
    assert tab.locator("svg polyline").count() == 2
    differing = tab.locator("#differences td:first-child").all_inner_texts()
    assert {"optimizer.lr", "validation_accuracy", "run"} <= {*differing}
    assert not {"seed", "data.name", "status"} & {*differing}
    assert tab.locator("figure img").count() == 2
    assert tab.evaluate(
        "[...document.images].every((image) => image.naturalWidth === 1)"
    )
    tab.locator("select").select_option("train loss")
    assert len(tab.locator("svg polyline").first.get_attribute("points").split()) == 40


@in_a_browser
def test_a_strangers_text_is_text(tab: Any) -> None:
    """Names with markup are shown as they are; nothing of them runs (the fixture
    looks). Negative
    control: the same text as HTML does run."""
    tab.fill("#column", f"model.{EVIL}")
    tab.press("#column", "Enter")
    assert EVIL in cells(tab, "model.name")
    tab.fill("#filter", "run=*evil")
    tab.locator("#runs tbody input").check()
    tab.fill("#filter", "")
    tab.locator("#runs tbody input").last.check()
    assert tab.locator("#differences").count() == 1
    other = tab.context.browser.new_page()
    other.set_content(f"<body>{EVIL}</body>")
    other.wait_for_function("window.pwned === 1")
    other.close()


@in_a_browser
def test_integers_are_exact(browser: Any, tmp_path: Path) -> None:
    """Shown, sorted, filtered, grouped and compared, from one million and from 2**53
    on, in lists too, and by --where and --sort. A float has six digits in the table."""
    seeds = [2**53 + 1, 123456789, 2**63 + 1, 2**53, 2**63]
    for seed in seeds:
        own = {"optimizer": {"lr": 1234567.5, "betas": [seed, 0.5]}}
        made_up_runs.write_result(tmp_path / "runs" / f"{seed}", seed, config=own)
    out = tmp_path / "a.html"
    words = (str(tmp_path / "runs"), "--columns", "run,seed,optimizer.betas")

    def seeds_by(*more: str) -> list[int]:
        done = command(SCRIPT, *words, *more, "--html", str(out), "--json")
        assert done.returncode == 0, done.stderr
        return [row["seed"] for row in json.loads(done.stdout)]

    ascending = [123456789, 2**53, 2**53 + 1, 2**63, 2**63 + 1]
    assert seeds_by("--sort", "seed") == ascending
    conditions = {
        f"seed={2**53 + 1}": [2**53 + 1],
        f"seed>{2**53}": ascending[2:],
        f"seed>={2**63 + 1}": [2**63 + 1],
        f"seed!={2**63}": [*ascending[:3], 2**63 + 1],
        f"optimizer.betas={2**63}": [2**63],
        "seed=1.23456789e8": [123456789],
    }
    for condition, expected in conditions.items():
        assert seeds_by("--where", condition, "--sort", "seed") == expected
    seeds_by()
    with opened_page(browser, out) as tab:
        tab.locator("th", has_text="seed").click()
        assert cells(tab, "seed") == [str(seed) for seed in ascending]
        lists = [f"[{seed}, 0.5]" for seed in ascending]
        assert cells(tab, "optimizer.betas") == lists
        for condition, expected in conditions.items():
            tab.fill("#filter", condition)
            assert cells(tab, "seed") == [str(seed) for seed in expected]
        tab.fill("#column", "optimizer.lr")
        tab.press("#column", "Enter")
        assert {*cells(tab, "optimizer.lr")} == {"1.23457e+6"}
        tab.fill("#filter", f"seed>={2**63}")
        for box in range(2):
            tab.locator("#runs tbody input").nth(box).check()
        texts = tab.locator("#differences td").all_inner_texts()
        assert texts[texts.index("seed") + 1 :][:2] == [str(2**63), str(2**63 + 1)]
        tab.check("#grouped")
        tab.fill("#filter", f"optimizer.betas={2**63}")
        assert cells(tab, "seed") == [str(2**63)]


@in_a_browser
def test_groups_count_a_seed_once(browser: Any, tmp_path: Path) -> None:
    """As sweep_report.py does, whose values these are: runs that repeat a seed, and its
    folds, are one value. How many runs repeat is said. Negative control: other seeds
    count."""
    folder = tmp_path / "runs"
    for sweep in ("a", "b"):
        for seed in (1, 2, 3):
            run = folder / sweep / f"{seed}"
            made_up_runs.write_result(run, seed, accuracy=0.86 + seed / 300)
    for seed in (1, 2):
        for fold in (0, 1):
            run = folder / f"lstm {seed} {fold}"
            value = 0.5 + seed / 100 + fold / 10
            made_up_runs.write_result(
                run, seed, model="lstm", fold=fold, accuracy=value
            )
    lacks = {"model": "lstm", "fold": 0, "accuracy": 0.9}
    made_up_runs.write_result(folder / "lstm 3 0", 3, **lacks)
    for n, value in enumerate((0.6, 0.7)):
        made_up_runs.write_result(folder / f"mlp {n}", 9, model="mlp", accuracy=value)
    report = json.loads(
        command("scripts/sweep_report.py", str(folder), "--json").stdout
    )
    expected = {
        group["settings"]["model.name"]: group["mean"] for group in report["groups"]
    }
    out = tmp_path / "a.html"
    assert command(SCRIPT, str(folder), "--html", str(out)).returncode == 0
    with opened_page(browser, out) as tab:
        tab.check("#grouped")
        names = cells(tab, "model.name")
        texts = dict(zip(names, cells(tab, "validation_accuracy"), strict=True))
        counts = dict(zip(names, cells(tab, "run"), strict=True))
    assert texts == {
        name: f"{value['mean']:.6g} \u00b1 {value['sd']:.2g} ({value['n']})"
        if value["n"] > 1
        else f"{value['mean']:.6g} (1)"
        for name, value in expected.items()
    }
    assert {name: value["n"] for name, value in expected.items()} == {
        "cnn": 3,
        "lstm": 2,
        "mlp": 1,
    }
    assert counts == {
        "cnn": "6 runs, 3 repeated",
        "lstm": "5 runs",
        "mlp": "2 runs, 1 repeated",
    }


VALUES: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        1,
        10,
        2**53,
        2**53 + 1,
        0.0,
        1.0,
        0.5,
        1e-5,
        0.0001,
        1.5e-7,
    ),
    *(123456.75, 1e15, 1e16, 1.5e300, math.inf, -math.inf, math.nan, "", "null", "1"),
    *("macro F1", "it's", 'a "b" c', "a.b", "a*b", "[a]", "2026-11-28T10:00:00", "inf"),
    *([], [0], [1.0, 2], ["a", "b c"], [[1], ["x"]], [True, None], ["", 1e-5]),
]
ASKED = [
    *(
        "0",
        "1",
        "1.0",
        "1e0",
        "+1",
        "10",
        "1_0",
        "0x1",
        str(2**53),
        str(2**53 + 1),
        "0.5",
    ),
    *(".5", "5e-1", "1e-05", "1e-5", "1*", "*5", "*.*", "*", "inf", "nan", "Infinity"),
    *(
        "null",
        "true",
        "false",
        "''",
        "macro*",
        "'macro F1'",
        '"macro F1"',
        "it's",
        "a.b",
    ),
    *("a?b", "[a]", "[]", "'[1.0, 2]'", "'*b c*'", "[[1], [x]]", "2026", "'a \"b\" c'"),
    *("[0]", "-1", "1e16", "1e+16", "1.5e+300", "1.5e-07", "1.5e-7"),
]
CONDITIONS = [
    *(f"value{sign}{asked}" for asked in ASKED for sign in ("=", "!=", "<", ">=")),
    *("value", "!value", "'value'", " value >= 1 ", "value>\t0 value < '2'", "value="),
    *(
        "value=1 'a key'=2",
        "!'a key' value=*",
        "value=macro F1",
        "value='macro F1",
        "=1",
    ),
    *("!value=1", "value==1", "value=<1", "value=1!", "value= 'a b'c", "! value", "''"),
]


@in_a_browser
def test_the_filter_and_where_agree(browser: Any, tmp_path: Path) -> None:
    """On each condition, they refuse it or select the same values."""
    rows = [
        {"run": str(n), "value": value, **({"a key": 2} if n % 2 else {})}
        for n, value in enumerate(VALUES)
    ]
    # No such folders are there: a page needs none.
    out = tmp_path / "a.html"
    out.write_text(page_module.build(rows, ["run", "value"]))

    def by_where(condition: str) -> list[str] | None:
        try:
            conditions = selection.Condition.parse_all(condition)
            return [row["run"] for row in selection.select(rows, conditions)]
        except InputError:
            return None

    expected = {condition: by_where(condition) for condition in CONDITIONS}
    script = """(conditions) => conditions.map((words) => {
      state.filter = words;
      try {
        return filtered().map((run) => run.values.get("run"));
      } catch {
        return null;
      }
    })"""
    with opened_page(browser, out) as tab:
        selected = dict(zip(CONDITIONS, tab.evaluate(script, CONDITIONS), strict=True))
    assert selected == expected
    refused = {condition for condition, found in expected.items() if found is None}
    assert {"value=macro F1", "value='macro F1", "=1", "!value=1"} <= refused
    for condition in ("value='macro F1'", "value=[]", "value=1.5e-07", "value=it's"):
        assert len(expected[condition] or []) == 1
