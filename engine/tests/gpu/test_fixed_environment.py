"""First gate, a fixed environment: under strict every process comes to the same bits."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from seedbed import testing
from tests.golden import runs
from tests.gpu.gates import GATE, MODELS, PROCESSES, configuration

pytestmark = GATE
AT_A_TIME = 4  # processes that share the GPU; none may disturb another


@pytest.mark.parametrize("model", MODELS)
def test_fresh_processes_have_the_same_fingerprints(
    model: str, undisturbed: dict[str, runs.FingerprintRows], tmp_path: Path
) -> None:
    """Twenty processes have the same bits at every step."""
    settings = configuration(model)
    folders = [tmp_path / str(number) for number in range(PROCESSES)]
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        list(pool.map(lambda folder: testing.train([(folder, settings)]), folders))
    for rows in map(runs.fingerprint_rows, folders):
        assert len(rows) == 60
        assert runs.first_difference(rows, undisturbed[model]) == ""


@pytest.mark.parametrize("model", MODELS)
def test_loader_workers_change_no_bit(
    model: str, undisturbed: dict[str, runs.FingerprintRows], tmp_path: Path
) -> None:
    """Negative control: what the model draws on the GPU shows in the first loss."""
    changes = {"workers": "data.num_workers=2", "dropout": "seeds.dropout=1"}
    settings = {name: configuration(model, change) for name, change in changes.items()}
    rows = runs.train(tmp_path, settings)
    assert runs.first_difference(rows["workers"], undisturbed[model]) == ""
    assert runs.first_difference(rows["dropout"], undisturbed[model]) == "step 1, loss"
