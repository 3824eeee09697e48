"""Each model once, as it comes."""

import pytest

from tests.golden import runs
from tests.gpu.gates import MODELS, fingerprint_rows


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, runs.FingerprintRows]:
    """Train each model once under strict."""
    folder = tmp_path_factory.mktemp("undisturbed")
    return {model: fingerprint_rows(folder / model, model) for model in MODELS}
