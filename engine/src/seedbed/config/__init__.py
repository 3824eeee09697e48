"""The configuration of a run: its types, its checks, and the classes that it may name."""

from seedbed.config.check import Request as Request
from seedbed.config.check import check as check
from seedbed.config.check import check_shards as check_shards
from seedbed.config.check import resolve as resolve
from seedbed.config.settings import Settings as Settings
from seedbed.config.settings import promises_bits as promises_bits
from seedbed.config.trust import entries as entries
from seedbed.config.trust import require_trusted as require_trusted
from seedbed.config.trust import targets_of as targets_of
