"""The ranks that the files of this folder share."""

from __future__ import annotations

import contextlib
import functools

import pytest
from ranks import Ranks

WAYS = {
    "host": {"ANYMPS_SHARED_MEMORY": "host"},  # the CPU copies and adds, on the tensors' own bytes
    "device": {"ANYMPS_SHARED_MEMORY": "device"},  # the device does, in the memory that the ranks share
    "export": {"ANYMPS_SHARED_MEMORY": "export"},  # the same in memory that the devices export to each other
    "gloo": {"ANYMPS_SHARED_MEMORY": "0"},  # as between machines
    "staging": {"ANYMPS_STAGING": "1"},  # as on devices whose memory the host does not see
}


@pytest.fixture(scope="session")
def _pools():
    """Of a parameter pytest keeps one value's fixture alone, and the tests of a process come in any order."""
    with contextlib.ExitStack() as stack:
        yield functools.cache(lambda way: stack.enter_context(Ranks(2, env=WAYS[way])))


@pytest.fixture(params=WAYS)
def ranks(request, _pools):
    """Two ranks for each way that data takes between them, the same for all tests."""
    return _pools(request.param)


@pytest.fixture(scope="session")
def pair():
    """Two ranks of one machine, as they come."""
    with Ranks(2) as pool:
        yield pool
