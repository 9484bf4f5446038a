"""The ranks that the files of this folder share."""

from __future__ import annotations

import pytest
from ranks import Ranks

WAYS = {
    "host": {"ANYMPS_SHARED_MEMORY": "host"},  # the CPU copies and adds, on the tensors' own bytes
    "device": {"ANYMPS_SHARED_MEMORY": "device"},  # the device does, in the memory that the ranks share
    "export": {"ANYMPS_SHARED_MEMORY": "export"},  # the same in memory that the devices export to each other
    "gloo": {"ANYMPS_SHARED_MEMORY": "0"},  # as between machines
    "staging": {"ANYMPS_STAGING": "1"},  # as on devices whose memory the host does not see
}


@pytest.fixture(scope="session", params=WAYS)
def ranks(request):
    """Two ranks for each way that data takes between them."""
    with Ranks(2, env=WAYS[request.param]) as pool:
        yield pool


@pytest.fixture(scope="session")
def pair():
    """Two ranks of one machine, as they come."""
    with Ranks(2) as pool:
        yield pool
