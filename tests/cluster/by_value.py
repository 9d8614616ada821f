"""Functions of test files go to other processes as they are: there is nothing to import there."""

from __future__ import annotations

import sys

import pytest


def by_value(name):
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'openfate[cluster]'")
    ray.cloudpickle.register_pickle_by_value(sys.modules[name])
