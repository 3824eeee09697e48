"""Make this checkout a project of your own: python scripts/new.py NAME

--help shows every option.
"""

import sys

from seedbed import cli

if __name__ == "__main__":
    sys.exit(cli.run("new", __file__))
