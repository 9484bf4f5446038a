"""What goes wrong between ranks is an error within the timeout, in a sentence that tells which rank saw what."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import training
from ranks import START, Ranks
from test_parallel_training import shard

TIMEOUT = 3.0  # seconds, of what must not come
LONG = 300.0  # seconds that a death must not take to be told, nor a step on a machine that is busy with others
# Of ranks of one machine, which share memory, and ranks as of two.
BOTH = ["host", "0", *(pytest.param(way, marks=pytest.mark.nightly) for way in ("device", "export"))]


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


def sum_of_all():
    x = torch.ones(4, device="mps")
    reduced(x)
    return x.tolist()


def outcome_of_nothing(message: bool):
    x = torch.ones(4, device="mps")
    work = dist.irecv(x, 1) if message else dist.all_reduce(x, async_op=True)
    return work.get_future_result().wait()


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


@pytest.mark.nightly
@pytest.mark.parametrize("message", [True, False])
def test_outcomes_of_what_does_not_come(both, message):
    """Within the timeout that the group has been given since its start."""
    assert both.run(sum_of_all) == [[2.0] * 4] * 2  # the group's first one agrees on the memory, in the call
    start = time.monotonic()
    assert both.run(outcome_of_nothing, message, ranks=[0]) == [torch._C._distributed_c10d.WorkResult.TIMEOUT.value]
    assert time.monotonic() - start < START.total_seconds() / 2


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


# --- ranks that are killed from outside

WRAPPED = {"ddp": torch.nn.parallel.DistributedDataParallel, "fully_shard": shard}


def train_until_error(kind, folder):
    """Marks in `folder` that training is under way."""

    def steps():
        model = WRAPPED[kind](training.net())
        optimizer = training.sgd(model.parameters())
        training.train(model, optimizer)
        mark(folder)
        while True:
            training.train(model, optimizer)

    return outcome(steps)


def mark(folder):
    Path(folder, str(dist.get_rank())).touch()


def killed_when_marked(pool, function, *args):
    """What rank 0 returns when rank 1 is killed after both of them have marked that they are in the middle."""
    with tempfile.TemporaryDirectory() as folder:
        pool._pipes[1].send((function, (*args, folder)))
        pool._pipes[0].send((function, (*args, folder)))
        deadline = time.monotonic() + LONG
        while len(os.listdir(folder)) < pool.world:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(0.1)
        pool.kill(1)
        return pool._results(LONG / 2, [0])[0]


def check_death_in_training(pool, kind):
    error, text, _ = killed_when_marked(pool, train_until_error, kind)
    assert error == "DistBackendError"
    assert "on mps" in text and "failed in rank 0 of 2: the connection to another rank is gone" in text


def test_a_rank_that_is_killed_in_a_step_of_ddp(patient):
    check_death_in_training(patient, "ddp")


def test_a_rank_that_is_killed_in_a_step_of_fully_shard(pair):
    check_death_in_training(pair, "fully_shard")


def save_until_error(kept, folder):
    """A checkpoint, then one more, in which rank 1 has written its part and has not told. What loads afterwards."""
    import torch.distributed.checkpoint as dcp

    class Writer(dcp.FileSystemWriter):
        def write_data(self, *args):
            done = super().write_data(*args)
            done.wait()
            mark(folder)
            if dist.get_rank():
                time.sleep(LONG)
            return done

    model = shard(training.net())
    training.train(model, training.sgd(model.parameters()))
    before = training.full(model)
    dcp.save(model.state_dict(), checkpoint_id=Path(kept, "first"))
    training.train(model, training.sgd(model.parameters()))
    after = training.full(model)
    result = outcome(lambda: dcp.save(model.state_dict(), storage_writer=Writer(Path(kept, "second"))))
    alone = training.net()
    weights = alone.state_dict()
    dcp.load(weights, checkpoint_id=Path(kept, "first"), no_dist=True)
    alone.load_state_dict(weights)
    loaded = training.full(alone)
    changed = any(not torch.equal(before[name], after[name]) for name in before)
    second = os.path.exists(os.path.join(kept, "second", ".metadata"))
    return result, changed and all(torch.equal(before[name], loaded[name]) for name in before), second


def test_a_rank_that_is_killed_in_a_save_of_a_checkpoint(pair, tmp_path):
    (error, text, _), loads, second = killed_when_marked(pair, save_until_error, str(tmp_path))
    assert error != "no error" and "onnection" in text, (error, text)  # PyTorch's own, of gloo
    assert loads and not second


# --- messages


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
