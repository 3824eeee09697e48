"""Search for settings with Optuna: python scripts/search.py hparams_search=NAME

--help shows every option.
"""

import sys

from seedbed import cli

if __name__ == "__main__":
    sys.exit(cli.run("search", __file__))
