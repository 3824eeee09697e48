"""Comparison of two records: the first step and stage that differ, and all recorded changes."""

from seedbed.compare.difference import Comparison as Comparison
from seedbed.compare.difference import Difference as Difference
from seedbed.compare.difference import Record as Record
from seedbed.compare.difference import comparable_stages as comparable_stages
from seedbed.compare.difference import compare as compare
from seedbed.compare.difference import first_difference as first_difference
from seedbed.compare.difference import read as read
