"""Print hashes of the results of Python's and NumPy's functions."""

import hashlib
import json
import math

import numpy as np

UNARY = "exp log sin cos tan tanh arctan sinh cbrt exp2 log2 log1p expm1 sqrt"


def main() -> None:
    generator = np.random.default_rng(0)
    values = {}
    for kind in (np.float32, np.float64):
        x = (generator.random(4096) * 4 + 0.01).astype(kind)
        square = x.reshape(64, 64)
        for name in UNARY.split():
            values[f"{name} {kind.__name__}"] = getattr(np, name)(x)
        values[f"power {kind.__name__}"] = x ** kind(0.3)
        values[f"sum {kind.__name__}"] = x.sum()
        values[f"matmul {kind.__name__}"] = square @ square
        values[f"svd {kind.__name__}"] = np.linalg.svd(square)[1]
    values["normal"] = np.random.RandomState(0).normal(size=1000)
    values["multivariate"] = generator.multivariate_normal(
        np.zeros(4), np.eye(4) + 0.3, size=1000
    )
    points = np.linspace(0.1, 3, 20_000)  # many, because FMA changes few results
    for name in ["exp", "log", "sin", "cos", "tan", "atan", "tanh", "log1p"]:
        values[f"math.{name}"] = np.array(
            [getattr(math, name)(point) for point in points]
        )
    values["math.pow"] = np.array([0.999**exponent for exponent in points])
    print(json.dumps({name: digest(value) for name, value in values.items()}))


def digest(value: object) -> str:
    return hashlib.blake2b(
        np.ascontiguousarray(value).tobytes(), digest_size=8
    ).hexdigest()


if __name__ == "__main__":
    main()
