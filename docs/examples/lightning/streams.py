"""docs/examples/streams.md with Lightning."""

from common import fit
from digits_cnn import Digits
from torch.utils.data import DataLoader

from project.lines import Lines
from project.models.dense import Dense


class OfLines(Digits):
    def __init__(self) -> None:
        super().__init__()
        self.model = Dense(256, 2, 16)


if __name__ == "__main__":
    train = DataLoader(Lines(4000), 32, num_workers=2, persistent_workers=True)
    fit(OfLines(), [train, DataLoader(Lines(500), 100)])
