"""Train the project of the engine's tests, as the template's train.py trains its
own."""

import sys

from seedbed import cli

if __name__ == "__main__":
    sys.exit(cli.run("train", __file__))
