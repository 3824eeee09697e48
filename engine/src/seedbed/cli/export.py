"""Export the model of a run to a file that needs nothing of the project, and check it.

FILE.json beside it has its inputs and outputs, the run, and the digests of weights and
file. The outputs of the file are compared with the model's for samples of the run's
test set, and its predictions with test_predictions.csv; if they differ, nothing is
written and the status is 1.
"""

from pathlib import Path

from seedbed.config import options
from seedbed.record import text
from seedbed.tools import request

FORMATS = ("torch.export", "onnx", "torchscript", "safetensors")
# The file is for any machine; samples are loaded as they are anywhere.
_ON_CPU = ["trainer.device=cpu", "trainer.compile=false"]


def main() -> int:
    parser = options.Parser(__doc__)
    parser.add("run", type=Path, help="the folder or zip of a run")
    parser.add(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="such as data.dataset.root=...",
    )
    format_help = (
        "safetensors has the weights alone; onnx and safetensors need packages"
    )
    parser.add("--format", choices=FORMATS, default=FORMATS[0], help=format_help)
    parser.add("--out", type=options.output, metavar="FILE", required=True)
    mlflow_help = (
        "also store both files as artifacts of the MLflow run of logger=mlflow"
    )
    parser.add("--mlflow", action="store_true", help=mlflow_help)
    arguments = parser.add_for_checkpoints().parse_intermixed_args()
    arguments.run_name = str(arguments.run)
    arguments.overrides += _ON_CPU
    status, row = request.answered(arguments.run, arguments, "export")
    if row and arguments.json:
        print(text.as_json(row))
    elif row and "error" not in row:
        shown = {key: row[key] for key in ("file", "format", "step", "batch")} | row[
            "checked"
        ]
        options.show(f"{key} {text.show(value)}" for key, value in shown.items())
    return status
