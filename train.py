"""Train a model: compose the configuration, check it, start the training process.

python train.py                              the default configuration,
configs/config.yaml python train.py experiment=NAME              an experiment of
configs/experiment/ python train.py -m seed=0,1,2                a sweep; ends with a
table over the seeds python train.py --cfg job                    the configuration that
would run
"""

import sys

from seedbed import cli

if __name__ == "__main__":
    sys.exit(cli.run("train", __file__))
