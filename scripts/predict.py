"""Predict new samples: python scripts/predict.py RUN data.dataset.file=new.csv --out
FILE

--help shows every option.
"""

import sys

from seedbed import cli

if __name__ == "__main__":
    sys.exit(cli.run("predict", __file__))
