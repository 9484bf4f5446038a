"""torch.mps.Stream and the functions around it, which PyTorch has from 2.15 on, and there for Apple's builds alone.

The device has one in-order queue. Every Stream is that queue: all are equal, and to wait for one costs nothing.
"""

from __future__ import annotations

import contextlib

import torch


class Stream(torch.Stream):
    """The device's one stream, a torch.Stream with stream_id 0.

    device is an mps device or its index; priority is taken for the sake of code that serves several kinds of devices.
    Raises ValueError for a device of another type and for another stream_id, RuntimeError for an index that is none.
    """

    def __new__(cls, device=None, priority: int = 0, *, stream_id: int = 0, device_index: int = 0, device_type=None):
        if device is None or isinstance(device, int):
            device = torch.device("mps", device_index if device is None else device)
        if torch.device(device).type != "mps":
            raise ValueError(f"Expected a mps device, but got: {device}")
        if stream_id != 0:
            raise ValueError(f"The mps device has one stream, whose stream_id is 0, but got: {stream_id}")
        return super().__new__(cls, device=device)

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


def current_stream(device=None) -> Stream:
    """The stream that operators are submitted to."""
    return Stream(device)


def default_stream(device=None) -> Stream:
    """The same stream."""
    return Stream(device)


def set_stream(stream: torch.Stream | None) -> None:
    """Does nothing but check: a stream of mps is the current one, and None is no wish."""
    if stream is not None and _checked(stream, torch.Stream).device.type != "mps":
        raise ValueError(f"Expected a stream of mps, but got: {stream}")


@contextlib.contextmanager
def stream(stream: torch.Stream | None):
    """A context whose operators are submitted to `stream`, as all are; None changes nothing either."""
    set_stream(stream)
    yield


def record_event(self, stream: torch.Stream | None = None):
    """torch.mps.Event.record, which takes a stream here, as the events of other devices do; returns the event."""
    set_stream(stream)
    torch._C._mps_recordEvent(self._Event__eventId)
    return self


def wait_event(self, stream: torch.Stream | None = None) -> None:
    """torch.mps.Event.wait: what is submitted later, to `stream` or any, waits for the event."""
    set_stream(stream)
    torch._C._mps_waitForEvent(self._Event__eventId)
