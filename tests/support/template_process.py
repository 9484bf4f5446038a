"""A process that has imported PyTorch and makes copies of itself, which run scripts seconds sooner than interpreters.

A copy is what an interpreter is at the end of `import torch`, before backends are loaded: these load in the copy, with
its variables, and it ends as an interpreter does. Only cycles of objects that PyTorch's import made stay to the end.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Iterable

AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
# Read before the end of `import torch`, or by what a copy shares with its template: such scripts get an interpreter.
READ_AT_THE_START = re.compile("PY|TORCH|LD_|OMP_|KMP_|GOMP_|MKL_|OPENBLAS_|MALLOC_|LC_")
READ_LATER = re.compile(f"{AUTOLOAD}$|TORCHINDUCTOR_|PYTORCH_ENABLE_MPS_FALLBACK$|PYTORCH_MPS_")


def serves(names: Iterable[str]) -> bool:
    """Whether a copy for which these variables are changed is what an interpreter is."""
    return not any(READ_AT_THE_START.match(name) and not READ_LATER.match(name) for name in names)


class Template:
    """Owns the process, which starts at the first run."""

    def __init__(self):
        self._process: subprocess.Popen | None = None
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()

    def run(self, script: str, *args: str, variables: dict[str, str], timeout: float) -> subprocess.CompletedProcess:
        """As subprocess.run() of the interpreter with a script: a path, source text, or -m before a module."""
        self._start()
        request = {"script": script, "args": args, "variables": variables, "folder": os.getcwd()}
        ours, theirs = socket.socketpair()
        with ours, tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
            with theirs:
                socket.send_fds(self._socket, [b"."], [theirs.fileno(), out.fileno(), errors.fileno()])
            ours.sendall(json.dumps(request).encode())
            ours.shutdown(socket.SHUT_WR)
            with ours.makefile() as answers:
                pid = int(answers.readline())
                code = None
                try:
                    ours.settimeout(timeout)
                    code = int(answers.readline())
                except TimeoutError:
                    raise subprocess.TimeoutExpired(script, timeout) from None
                finally:
                    if code is None:
                        os.kill(pid, signal.SIGKILL)
            out.seek(0), errors.seek(0)
            return subprocess.CompletedProcess([script, *args], code, out.read(), errors.read())

    def close(self) -> None:
        if self._process is not None:
            self._socket.close()
            self._process.wait()
            self._process = None

    def _start(self) -> None:
        with self._lock:
            if self._process is not None:
                return
            self._socket, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, __file__, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    env=os.environ | {AUTOLOAD: "0"},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                )


def _serve(requests: socket.socket) -> dict | None:
    """In the template: returns at its end. In a copy: returns what to run."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        word, files, _, _ = socket.recv_fds(requests, 1, 3)
        if not word:
            return None
        if os.fork() == 0:
            break
        for file in files:
            os.close(file)
    # One process stays to wait for the copy.
    requests.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    answers = socket.socket(fileno=files[0])
    with answers.makefile() as text:
        request = json.load(text)
    pid = os.fork()
    if pid:
        answers.sendall(f"{pid}\n".encode())
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(BrokenPipeError):  # who asked waits no more
            answers.sendall(f"{code}\n".encode())
        os._exit(0)
    answers.close()
    for number, file in enumerate(files[1:], 1):
        os.dup2(file, number)
        os.close(file)
    return request


def _run(torch, request: dict) -> None:
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["variables"])
    script, args, main = request["script"], request["args"], types.ModuleType("__main__")
    is_file = os.path.exists(script)
    sys.path[0] = os.path.dirname(script) if is_file else ""
    sys.argv = [script if is_file else "-c", *args]
    if is_file:
        main.__file__ = script
        with open(script) as file:
            text = file.read()
    elif script == "-m":
        sys.argv = args
        text = f"import runpy; runpy.run_module({args[0]!r}, run_name='__main__', alter_sys=True)"
    else:
        text = script
    code = compile(text, script if is_file else "<string>", "exec", dont_inherit=True)
    if torch._is_device_backend_autoload_enabled():
        torch._import_device_backends()
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


if __name__ == "__main__":
    import pytest  # noqa: F401  (some scripts run tests)
    import torch

    gc.collect()
    gc.freeze()  # a copy that visits these objects would copy their memory: a second at its end
    _request = _serve(socket.socket(fileno=int(sys.argv[1])))
    if _request is not None:
        _run(torch, _request)
