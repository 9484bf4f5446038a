"""What goes wrong between ranks is an error within the timeout, in a sentence that tells which rank saw what."""

from __future__ import annotations

import os
import signal
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks

TIMEOUT = 3.0  # seconds, of what must not come
LONG = 300.0  # seconds that a death must not take to be told, nor a step on a machine that is busy with others
BOTH = ["host", "device", "export", "0"]  # of ranks of one machine, which share memory, and ranks as of two


@pytest.fixture(params=BOTH)
def both(request):
    with Ranks(2, timeout=TIMEOUT, env={"ANYMPS_SHARED_MEMORY": request.param}) as pool:
        yield pool


@pytest.fixture
def pair():
    with Ranks(2, timeout=LONG) as pool:
        yield pool


@pytest.fixture(params=BOTH)
def patient(request):
    with Ranks(2, timeout=LONG, env={"ANYMPS_SHARED_MEMORY": request.param}) as pool:
        yield pool


def outcome(call):
    start = time.monotonic()
    try:
        call()
    except RuntimeError as error:
        return type(error).__name__, str(error).splitlines()[0], time.monotonic() - start
    return "no error", "", time.monotonic() - start


def reduced(x):
    """All-reduces and waits: what goes wrong while the stream waits is raised at the synchronization."""
    dist.all_reduce(x)
    torch.mps.synchronize()


def all_reduce_alone():
    """And what the device does afterwards."""
    result = outcome(lambda: reduced(torch.ones(4, device="mps")))
    return *result, (torch.ones(3, device="mps") * 2).tolist()


def die_in_all_reduce():
    """Ends as by kill -9 while its all-reduce is under way."""
    threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    x = torch.ones(1 << 24, device="mps")
    while True:
        reduced(x)


def all_reduce_until_error():
    def forever():
        x = torch.ones(1 << 24, device="mps")
        while True:
            reduced(x)

    return outcome(forever)


def mappings():
    """Of memory that the ranks share; this one leaves the group."""
    before = shared_mappings()
    dist.destroy_process_group()
    return before, shared_mappings()


def shared_mappings():
    with open("/proc/self/maps") as maps:
        return sum("anymps_collectives" in line for line in maps)


def test_a_rank_that_does_not_come(both):
    ((kind, text, seconds, after),) = both.run(all_reduce_alone, ranks=[0])
    assert kind == "DistBackendError"
    assert "all_reduce on mps (number 1 of its group) failed in rank 0 of 2" in text
    assert "did not take part within the timeout" in text
    assert TIMEOUT - 1 < seconds < LONG
    assert after == [2.0] * 3


def killed(pool):
    pool._pipes[1].send((die_in_all_reduce, ()))
    return pool.run(all_reduce_until_error, ranks=[0], patience=LONG / 2)


def test_a_rank_that_is_killed_in_an_all_reduce(patient):
    ((kind, text, _),) = killed(patient)  # before LONG is over
    assert kind == "DistBackendError"
    assert "the connection to another rank is gone" in text


def test_the_memory_of_a_killed_rank_is_given_back(pair):
    """The survivor maps both ranks' until it leaves the group; nobody else does, and it has no name to be found by."""
    killed(pair)
    assert pair.run(mappings, ranks=[0]) == [(2, 0)]


def send_to_nobody():
    return outcome(lambda: dist.isend(torch.ones(1 << 20, device="mps"), 1).wait(timedelta(seconds=TIMEOUT)))


def receive_from_nobody():
    return outcome(lambda: dist.irecv(torch.ones(3, device="mps"), 1).wait(timedelta(seconds=TIMEOUT)))


@pytest.mark.parametrize("call", [receive_from_nobody, send_to_nobody], ids=["recv", "send"])
def test_messages_that_do_not_come(pair, call):
    ((kind, text, seconds),) = pair.run(call, ranks=[0])
    assert kind == "DistBackendError"
    assert "on mps (number 1 of its group) failed in rank 0 of 2" in text
    assert seconds < LONG
