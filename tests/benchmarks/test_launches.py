"""What an update launches, reads and multiplies on a GPU; counted, so no GPU is asked."""

import json

import pytest

from benchmarks.launches import count, launches_on_lists, main
from benchmarks.shapes import TRAINING
