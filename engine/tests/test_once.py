"""What is made once: one makes it, the others wait and get the same."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.once import made_once


def test_who_comes_meanwhile_waits_for_the_whole(tmp_path: Path) -> None:
    makers: list[int] = []

    def ask(number: int) -> str:
        def make(folder: Path) -> None:
            makers.append(number)
            time.sleep(0.2)  # others ask meanwhile
            (folder / "file").write_text("whole")

        return (made_once(tmp_path / "run", make) / "file").read_text()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, range(4))) == ["whole"] * 4
    assert len(makers) == 1


def test_what_failed_is_made_anew(tmp_path: Path) -> None:
    """Negative control: half of it is never given to anybody."""

    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        made_once(tmp_path / "run", fail)
    assert list(made_once(tmp_path / "run", Path.exists).iterdir()) == []
