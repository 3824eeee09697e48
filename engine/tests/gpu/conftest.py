"""What the gates share: the device, and each model trained once.

SEEDBED_GPU_TESTS_DEVICE=cpu tries the gates where there is no GPU.
SEEDBED_GPU_TESTS_PROCESSES is the number of processes of the first gate (20).
"""

import pytest

from tests.golden import runs
from tests.gpu.gates import MODELS, configuration


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, runs.FingerprintRows]:
    """Train each model once under strict; return their fingerprints."""
    settings = {model: configuration(model) for model in MODELS}
    return runs.train(tmp_path_factory.mktemp("undisturbed"), settings)
