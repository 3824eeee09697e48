"""The record of a training loop of one's own: `seedbed.Recorder`."""

from seedbed.recorder.recorder import Recorder as Recorder
