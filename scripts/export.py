"""Export the model of a run for inference: python scripts/export.py RUN

--help shows every option.
"""

import sys

from seedbed import cli

if __name__ == "__main__":
    sys.exit(cli.run("export", __file__))
