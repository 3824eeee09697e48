"""The one program that works for the commands."""

from importlib import import_module

import pytest

from seedbed.worker import TASKS
from tests.running import command


@pytest.mark.parametrize("task", TASKS)
def test_each_task_is_a_function(task: str) -> None:
    module, _, name = TASKS[task].rpartition(".")
    assert callable(getattr(import_module(module), name))


@pytest.mark.parametrize("words", [(), ("runs/a",)])
def test_an_unknown_task_is_one_line(words: tuple[str, ...]) -> None:
    done = command("-m", "seedbed.worker", *words)
    assert done.returncode == 2
    assert done.stderr.startswith("error: task: expected one of train, ")
    assert len(done.stderr.splitlines()) == 1
