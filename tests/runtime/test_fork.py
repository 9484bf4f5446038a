"""A forked child of a process that has used the device."""

from __future__ import annotations

import multiprocessing
import os

import pytest
import torch

MESSAGE = (
    "Cannot re-initialize MPS in forked subprocess. To use MPS with multiprocessing, you must use the 'spawn' start "
    "method"
)


def outcome(call) -> str:
    try:
        return f"returned {call()}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def in_child(call) -> str:
    """What `call` does in a forked child: its result or its error."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        os.write(write, outcome(call).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with status {status} after {text!r}"
    return text


@pytest.fixture
def used_device(mps):
    x = torch.arange(4).to(mps)
    torch.mps.synchronize()
    return x


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.ones(2, device="mps"),
        lambda x: x + 1,
        lambda x: x.cpu(),
        lambda x: x[0].item(),
        lambda x: torch.mps.synchronize(),
        lambda x: torch.mps.Event().record(),
    ],
    ids=["factory", "op", "copy", "item", "synchronize", "event"],
)
def test_child_gets_an_error(used_device, call):
    assert in_child(lambda: call(used_device)) == f"RuntimeError: {MESSAGE}"


def test_parent_goes_on(used_device):
    in_child(lambda: torch.ones(2, device="mps"))
    assert (used_device + 1).cpu().tolist() == [1, 2, 3, 4]


def test_child_knows_that_there_is_no_device(used_device):
    assert in_child(torch.backends.mps.is_available) == "returned False"
    assert in_child(torch.mps.device_count) == "returned 0"


def test_child_may_train_on_the_cpu(mps, run_python):
    # In a process of its own: after a backward with threads PyTorch itself refuses a backward in forked children.
    done = run_python(
        """
import os, torch
x = torch.arange(4).to("mps")
if os.fork() == 0:
    torch.manual_seed(0)  # seeds the device's generator too, which is host memory
    y = torch.rand(4, requires_grad=True)
    y.square().sum().backward()
    assert torch.equal(y.grad, 2 * y.detach())
    os._exit(7)
print(os.waitstatus_to_exitcode(os.wait()[1]), (x + 1).cpu().tolist())
"""
    )
    assert done.stdout.strip() == "7 [1, 2, 3, 4]", done.stderr


def test_child_has_the_seed_that_it_takes(mps, run_python):
    done = run_python(
        """
import os, torch
torch.manual_seed(1)  # opens no device
if os.fork() == 0:
    torch.manual_seed(2)
    own = torch.Generator("mps").manual_seed(2)
    same = torch.equal(torch.rand(9, device="mps"), torch.rand(9, device="mps", generator=own))
    os._exit(7 if same else 1)
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    )
    assert done.stdout.strip() == "7", done.stderr


def test_freeing_in_the_child_is_harmless(used_device):
    def free():
        nonlocal used_device
        used_device = None
        return "freed"

    assert in_child(free) == "returned freed"
    assert torch.ones(2, device="mps").cpu().tolist() == [1, 1]


def _use_device(queue) -> None:
    queue.put((torch.arange(3).to("mps") * 2).cpu().tolist())


def test_spawned_child_has_a_device(used_device):
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_use_device, args=(queue,))
    process.start()
    assert queue.get(timeout=120) == [0, 2, 4]
    process.join()
    assert process.exitcode == 0


CHILDREN = """
import os, signal, torch

signal.alarm(60)
assert torch.backends.mps.is_available()  # lists the devices, and opens none
pipes = [os.pipe() for _ in range(4)]
started, go = os.pipe(), os.pipe()
for number, (_, write) in enumerate(pipes):
    if os.fork() == 0:
        signal.alarm(60)
        x = torch.full((1 << 16,), float(number), device="mps")
        torch.mps.synchronize()
        os.write(started[1], b"x")
        os.read(go[0], 1)
        os.write(write, str(x.unique().tolist()).encode())
        os._exit(0)
for _ in pipes:
    os.read(started[0], 1)
os.write(go[1], b"x" * len(pipes))
print([os.read(read, 100).decode() for read, _ in pipes])
"""


def test_children_of_a_process_that_has_listed_devices_have_memory_of_their_own(mps, run_python):
    result = run_python(CHILDREN, timeout=120)
    assert result.stdout.strip() == str([f"[{number}.0]" for number in range(4)]), result.stderr
