"""The record of a run: reading and writing run folders."""

from seedbed.names import flatten as flatten
from seedbed.record.change import Change as Change
from seedbed.record.change import changes as changes
from seedbed.record.code import Origin as Origin
from seedbed.record.folder import FINGERPRINT_FIELDS as FINGERPRINT_FIELDS
from seedbed.record.folder import FORMAT_VERSION as FORMAT_VERSION
from seedbed.record.folder import LAST_CHECKPOINTS as LAST_CHECKPOINTS
from seedbed.record.folder import METRIC_FIELDS as METRIC_FIELDS
from seedbed.record.folder import SWEEP as SWEEP
from seedbed.record.folder import Row as Row
from seedbed.record.folder import Table as Table
from seedbed.record.folder import altered as altered
from seedbed.record.folder import is_run as is_run
from seedbed.record.folder import is_sweep as is_sweep
from seedbed.record.folder import lock as lock
from seedbed.record.folder import read_fingerprints as read_fingerprints
from seedbed.record.folder import read_metrics as read_metrics
from seedbed.record.folder import read_summary as read_summary
from seedbed.record.folder import require_run as require_run
from seedbed.record.folder import runs_below as runs_below
from seedbed.record.folder import values_of as values_of
from seedbed.record.folder import write_atomically as write_atomically
from seedbed.record.folder import write_json as write_json
from seedbed.record.untrusted import read_config as read_config
from seedbed.record.untrusted import read_json as read_json
