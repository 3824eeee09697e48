"""Export the model of a run: python scripts/export.py RUN --format onnx --out FILE

--help shows every option.
"""

import sys

from seedbed import cli

if __name__ == "__main__":
    sys.exit(cli.run("export", __file__))
