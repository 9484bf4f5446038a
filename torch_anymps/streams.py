"""torch.mps.Stream and the functions around it, which PyTorch has from 2.15 on, and there for Apple's builds alone.

The device runs the commands of all streams on one queue, in the order of the calls, so waiting for another stream's
commands costs nothing. What a stream waits for besides, such as collectives, holds up no other stream.
"""

from __future__ import annotations

import contextlib

import torch


class Stream(torch.Stream):
    """A stream of its own, a torch.Stream; with stream_id, the one of that number, of which 0 is the default stream.

    device is an mps device or its index; priority is taken for the sake of code that serves several kinds of devices.
    Raises ValueError for a device of another type, RuntimeError for an index that is none.
    """

    def __new__(
        cls, device=None, priority: int = 0, *, stream_id: int | None = None, device_index: int = 0, device_type=None
    ):
        if device is None or isinstance(device, int):
            device = torch.device("mps", device_index if device is None else device)
        if torch.device(device).type != "mps":
            raise ValueError(f"Expected a mps device, but got: {device}")
        made = super().__new__(cls, device=device)
        if stream_id is None:
            return made
        return super().__new__(cls, stream_id=stream_id, device_index=made.device_index, device_type=made.device_type)

    def record_event(self, event=None):
        """Records a torch.Event or torch.mps.Event, a new torch.Event by default, and returns it."""
        if not isinstance(event, torch.mps.Event):
            return super().record_event() if event is None else super().record_event(_checked(event, torch.Event))
        event.record(self)
        return event

    def wait_event(self, event) -> None:
        """What is submitted later waits for an event of either class. Raises TypeError for anything else."""
        if isinstance(event, torch.mps.Event):
            event.wait(self)
        else:
            super().wait_event(_checked(event, torch.Event))

    def wait_stream(self, stream) -> None:
        """What is submitted later waits for what `stream` holds now. Raises TypeError for what is no stream."""
        super().wait_stream(_checked(stream, torch.Stream))

    def __repr__(self) -> str:
        return f"<torch.mps.Stream stream_id={self.stream_id}>"


def _checked(value, kind: type):
    # The C functions take the bytes of any object for those of a stream or an event.
    if not isinstance(value, kind):
        raise TypeError(f"Expected a {kind.__module__}.{kind.__name__}, but got: {type(value).__name__}")
    return value


def _checked_stream(stream):
    if stream is not None and _checked(stream, torch.Stream).device.type != "mps":
        raise ValueError(f"Expected a stream of mps, but got: {stream}")
    return stream


def current_stream(device=None) -> Stream:
    """The stream that operators of this thread are submitted to."""
    return Stream(device, stream_id=torch.ops.anymps.current_stream_id())


def default_stream(device=None) -> Stream:
    """The stream that operators are submitted to where no other was set."""
    return Stream(device, stream_id=0)


def set_stream(stream: torch.Stream | None) -> None:
    """Makes `stream` this thread's current one; None is no wish. Raises ValueError for another device's stream."""
    if _checked_stream(stream) is not None:
        torch.ops.anymps.exchange_stream_id(stream.stream_id)


@contextlib.contextmanager
def stream(stream: torch.Stream | None):
    """A context whose operators are submitted to `stream`; None changes nothing."""
    if _checked_stream(stream) is None:
        yield
        return
    before = torch.ops.anymps.exchange_stream_id(stream.stream_id)
    try:
        yield
    finally:
        torch.ops.anymps.exchange_stream_id(before)


def record_event(self, stream: torch.Stream | None = None):
    """torch.mps.Event.record, which takes a stream here, as the events of other devices do; returns the event."""
    with _current(stream):
        torch._C._mps_recordEvent(self._Event__eventId)
    return self


def wait_event(self, stream: torch.Stream | None = None) -> None:
    """torch.mps.Event.wait: what is submitted later, to `stream` or the current one, waits for the event."""
    with _current(stream):
        torch._C._mps_waitForEvent(self._Event__eventId)


_current = stream  # the methods' arguments have its name
