"""Garbage collection while much is made that stays: imports, the graphs of a compilation."""

from __future__ import annotations

import contextlib
import gc
import threading

_NEVER = 1 << 30
_lock = threading.Lock()
_depth = 0
_before = (0, 0, 0)


@contextlib.contextmanager
def few_collections():
    """Puts off collections of the oldest generation, which visit every object of the process (0.2 s with a model and
    PyTorch's compiler loaded). Young garbage is collected as ever. May be nested, in any thread."""
    global _depth, _before
    with _lock:
        if _depth == 0:
            _before = gc.get_threshold()
            gc.set_threshold(*_before[:2], _NEVER)
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0 and gc.get_threshold() == (*_before[:2], _NEVER):  # nobody else has changed it
                gc.set_threshold(*_before)
