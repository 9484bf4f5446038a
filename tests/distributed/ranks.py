"""Processes that stay: ranks of one process group that run functions. To start them costs seconds, a call nothing."""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import os
import pickle
import signal
import sys
import tempfile
import traceback
from datetime import timedelta

import pytest

START = timedelta(seconds=300)  # of two interpreters on a busy machine


class RankError(AssertionError):
    """What a rank raised, with its traceback."""


class Ranks:
    """`world` ranks with the process group of init_process_group(backend). Use as a context.

    run(function, *args) calls a function of a module, which pickle names, in every rank and returns the results in
    their order; RankError if any rank raised, OSError if one does not answer within `patience` seconds.
    """

    def __init__(self, world: int = 2, backend: str | None = "gloo", timeout: float = 240, env: dict | None = None):
        self.world = world
        self._settings = (backend, timeout, {"WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1", **(env or {})})
        self._start()

    def run(self, function, *args, patience: float = 300, ranks=None):
        wanted = range(self.world) if ranks is None else ranks
        for rank in wanted:
            self._pipes[rank].send((function, args))
        try:
            return self._results(patience, wanted)
        except (RankError, OSError):
            self._stop()  # the ranks may be at different collectives now
            self._start()
            raise

    def kill(self, rank: int) -> None:
        """As by the kernel for want of memory: no goodbye."""
        os.kill(self.processes[rank].pid, signal.SIGKILL)
        self.processes[rank].join()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stop()

    def _start(self):
        backend, timeout, env = self._settings
        self._folder = tempfile.TemporaryDirectory()
        self._pipes, self.processes = [], []
        context = _context()
        store = os.path.join(self._folder.name, "store")
        for rank in range(self.world):
            here, there = context.Pipe()
            args = (there, rank, self.world, backend, store, timeout, {**os.environ, **env, "RANK": str(rank)})
            process = context.Process(target=_serve, args=args, daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self.processes.append(process)
        self._results(START.total_seconds())

    def _stop(self):
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
        self._folder.cleanup()

    def _results(self, patience, ranks=None):
        results, errors = [], []
        for rank in range(self.world) if ranks is None else ranks:
            if not self._pipes[rank].poll(patience):
                raise OSError(f"rank {rank} does not answer within {patience} s")
            try:
                ok, value = pickle.loads(self._pipes[rank].recv_bytes())
            except EOFError:
                self.processes[rank].join()
                raise OSError(f"rank {rank} has ended, exit code {self.processes[rank].exitcode}") from None
            (results if ok else errors).append(value if ok else f"rank {rank}: {value}")
        if errors:
            raise RankError("\n".join(errors))
        return results


def _context():
    """Starts processes as copies of one that has imported PyTorch, which takes seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["imported"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")  # read when it is imported
        patch.setenv("PYTHONPATH", os.pathsep.join(path for path in (os.path.dirname(__file__), *sys.path) if path))
        multiprocessing.forkserver.ensure_running()
    return context


def _serve(pipe, rank, world, backend, store, timeout, env):
    os.environ.clear()
    os.environ.update(env)
    try:
        import torch
        import torch.distributed as dist

        torch._import_device_backends()
        dist.init_process_group(
            backend,
            init_method=f"file://{store}",
            rank=rank,
            world_size=world,
            timeout=START,
        )
        # Of calls: starts take as long as they take.
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=timeout))
        _answer(pipe, True, None)
        while True:
            function, args = pipe.recv()
            try:
                _answer(pipe, True, function(*args))
            except BaseException:
                _answer(pipe, False, traceback.format_exc())
            torch.mps.empty_cache()  # what ranks hold while others run adds up
    except EOFError:
        pass
    except BaseException:
        _answer(pipe, False, traceback.format_exc())


def _answer(pipe, ok, value):
    pipe.send_bytes(pickle.dumps((ok, value)))
