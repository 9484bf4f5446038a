"""torch.compile(mode="reduce-overhead") on mps: compiled graphs are captured once and replayed.

A compiled graph, or each part of one between operators that must not be replayed (a function here), runs as it is at
first, is captured at the second call and replayed from then on. It may have several captures: one for each set of sizes
and of addresses of inputs that are read in place. While a profile is taken, or a graph that it would be a part of is
captured, it runs as it is.

Outputs of a replay are the capture's own memory. Those that still live at the next replay are given memory of their
own first (nobody sees a difference), or, where that would copy too much, the graph runs without a replay.
"""

from __future__ import annotations

import threading
import weakref

import torch
from torch._inductor import cudagraph_utils
from torch._inductor.compile_fx import (
    get_expanded_dims,
    index_expanded_dims_and_copy_,
    static_input,
)

from .runtime import launcher

MAX_CAPTURES = 8  # of one function: each has memory of its own
MAX_KEYS = 64  # of which a function remembers that they were there before
MAX_MOVED_BYTES = 16 << 20  # of outputs that still live; a run without a replay is cheaper than a longer copy

# By address of a captured output's storage: the function that has captured it.
_captured_by: weakref.WeakValueDictionary[int, _Function] = weakref.WeakValueDictionary()
_lock = threading.RLock()  # a forward and its backward run in different threads


class ReplayPolicy(cudagraph_utils.CUDAGraphPolicy):
    """What torch._inductor.config.cudagraph_policy is for mps; graphs of other devices are Inductor's own business."""

    def cudagraphify(self, model, example_inputs, static_input_idxs, **kwargs):
        tensors = [x for x in example_inputs if isinstance(x, torch.Tensor)]
        if any(x.device.type == "cuda" for x in tensors):
            return super().cudagraphify(model, example_inputs, static_input_idxs, **kwargs)
        function = _Function(
            model, frozenset(static_input_idxs), frozenset(kwargs.get("mutated_input_idxs", ())), kwargs["is_backward"]
        )

        def run(inputs):
            with _lock:
                return function(inputs)

        run._boxed_call = True
        return run


class _Function:
    """One compiled graph and its captures."""

    def __init__(self, model, static, mutated, is_backward: bool) -> None:
        self.model = model
        self.static = static
        self.mutated = mutated
        self.is_backward = is_backward
        self.captures: list[_Capture] = []
        self.last_addresses: dict[object, list[int]] = {}  # of the inputs of the last call, by key
        self.may_replay = True
        self.has_warned = self.has_warned_of_limit = False
        self.on_host: list[int] | None = None  # inputs that are no tensors of mps

    def __call__(self, inputs: list):
        if not self.may_replay:
            return self.model(inputs)
        key = self.key_of(inputs)
        for capture in self.captures:
            if capture.key == key and capture.matches(inputs):
                return capture.run(inputs)
        if not torch.ops.anymps.may_replay():
            return self.model(inputs)
        last = self.last_addresses.get(key)
        if len(self.last_addresses) == MAX_KEYS:
            self.last_addresses.clear()
        self.last_addresses[key] = [x.data_ptr() if isinstance(x, torch.Tensor) else 0 for x in inputs]
        if last is None:
            return self.model(inputs)
        if len(self.captures) == MAX_CAPTURES:
            self.warn_of_limit()
            return self.model(inputs)
        try:
            capture = _Capture(self, key, inputs, last)
            inputs = capture.taken_in(inputs)
            capture.record(self, inputs)
        except RuntimeError as error:
            # Nothing has run: what was captured is forgotten.
            self.give_up(str(error).split("\n")[0])
            return self.model(inputs)
        self.warn_of_sizes(key)
        self.captures.insert(0, capture)
        return capture.replay(inputs, capture.memory.take(0))

    def warn_of_sizes(self, key) -> None:
        """PyTorch's warning, once, where more sizes are captured than cudagraph_dynamic_shape_warn_limit says."""
        sizes = {capture.key[1:]: None for capture in self.captures}
        if self.has_warned or key[1:] in sizes:
            return
        self.has_warned = cudagraph_utils.maybe_warning_due_to_dynamic_shape(sizes, key[1:])

    def warn_of_limit(self) -> None:
        if not self.has_warned_of_limit:
            self.has_warned_of_limit = True
            cudagraph_utils.cudagraphs_log.warning(
                "A graph is captured for at most %d sizes and addresses of inputs that are written: for others it runs "
                "without a replay",
                MAX_CAPTURES,
            )

    def key_of(self, inputs: list) -> tuple:
        """What a capture has as constants: the host's values, which kernels are given as arguments."""
        if self.on_host is None:
            self.on_host = [i for i, x in enumerate(inputs) if not isinstance(x, torch.Tensor) or not x.is_mps]
            if any(isinstance(inputs[i], torch.Tensor) and inputs[i].numel() > 1 for i in self.on_host):
                self.give_up("an input on the CPU")
            if any(isinstance(inputs[i], (tuple, list)) for i in self.on_host):
                self.give_up("an input that is several tensors")  # of torch.cond, between two partitions
                self.on_host = []
        values = [x.item() if isinstance(x := inputs[i], torch.Tensor) and x.numel() == 1 else x for i in self.on_host]
        values = [x.hex() if isinstance(x, float) else x for x in values]  # 0.0 == -0.0
        # Threads that call one function at the same time need outputs of their own; autograd has one for all.
        return (0 if self.is_backward else threading.get_ident(), *values)

    def give_up(self, reason: str) -> None:
        self.may_replay = False
        reason = cudagraph_utils.format_default_skip_message(reason)
        cudagraph_utils.log_cudagraph_skip_and_bump_counter(reason)

    def reads_in_place(self, index: int, tensor: torch.Tensor, last_address: int, key) -> bool:
        """Whether an input will most likely be at this address again (or is written, so that it cannot be copied)."""
        if index in self.mutated:
            return True
        owner = _captured_by.get(tensor.untyped_storage().data_ptr())
        if owner is not None:
            return owner is not self
        address = tensor.data_ptr()
        others = (capture.addresses.get(index, address) for capture in self.captures if capture.key == key)
        if index not in self.static or any(other != address for other in others):
            return False  # it has moved once
        # Of a backward, Inductor calls everything static that the forward saved.
        return not self.is_backward or isinstance(tensor, torch.nn.Parameter) or address == last_address


class _Capture:
    """A captured run of a function. record() raises RuntimeError where the function cannot be captured."""

    def __init__(self, function: _Function, key, inputs: list, last_addresses: list[int]) -> None:
        self.function = weakref.proxy(function)
        self.key = key
        self.fixed: list[int] = []
        self.copied: list[int] = []
        for i, x in enumerate(inputs):
            if i not in function.on_host:
                in_place = function.reads_in_place(i, x, last_addresses[i], key)
                (self.fixed if in_place else self.copied).append(i)
        with torch.inference_mode(False):  # the next call may be outside of it
            self.buffers = [static_input(inputs[i]) for i in self.copied]
        self.expanded = [get_expanded_dims(x) for x in self.buffers]
        self.addresses = {i: inputs[i].data_ptr() for i in self.fixed}
        self.fixed_indices, self.fixed_addresses = tuple(self.fixed), tuple(self.addresses.values())

    def taken_in(self, inputs: list) -> list:
        """The inputs with copies in place of those that are not fixed; what the caller gave may be freed."""
        self._copy([inputs[i] for i in self.copied])
        taken = list(inputs)
        inputs.clear()
        for i, buffer in zip(self.copied, self.buffers, strict=True):
            taken[i] = buffer
        return taken

    def record(self, function: _Function, inputs: list) -> None:
        self.graph = torch.accelerator.Graph()
        self.graph.capture_begin()
        try:
            outputs = list(function.model(list(inputs)))
        finally:
            self.graph.capture_end()
        of_input = {inputs[i].untyped_storage().data_ptr(): i for i in self.fixed}
        self.template: list = []  # outputs: _GIVEN, _Alias or what does not change
        captured = []
        for x in outputs:
            if not isinstance(x, torch.Tensor):
                self.template.append(x)
                continue
            if not x.is_mps:
                # Attention says where its random numbers begin: for a capture, where replays write that.
                if x.numel() != 1 or x.dtype != torch.int64:
                    raise RuntimeError(f"an output on {x.device}")
                self.template.append(x)
                continue
            i = of_input.get(x.untyped_storage().data_ptr()) if x.numel() else None
            if i is None:
                captured.append(x)
                self.template.append(_GIVEN)
            else:
                self.template.append(_Alias(i, x, inputs[i]))
        self.gives_all = all(x is _GIVEN for x in self.template)
        self.memory = torch.classes.anymps.GraphMemory(captured)
        for x in captured:
            _captured_by[x.untyped_storage().data_ptr()] = function

    def matches(self, inputs: list) -> bool:
        return torch.ops.anymps.may_replay() and launcher().are_at(inputs, self.fixed_indices, self.fixed_addresses)

    def run(self, inputs: list) -> list:
        outputs = self.memory.take(MAX_MOVED_BYTES)
        if outputs is None:
            return self.function.model(inputs)
        self._copy([inputs[i] for i in self.copied])
        return self.replay(inputs, outputs)

    def replay(self, inputs: list, outputs: list[torch.Tensor]) -> list:
        self.graph.replay()
        if self.gives_all:
            inputs.clear()
            return outputs
        given = iter(outputs)
        result = []
        for x in self.template:
            if x is _GIVEN:
                x = next(given)
            elif isinstance(x, _Alias):
                x = x.of(inputs[x.index])
            elif isinstance(x, torch.Tensor):
                x = x.clone()
            result.append(x)
        inputs.clear()
        return result

    def _copy(self, inputs: list[torch.Tensor]) -> None:
        if not inputs:
            return
        if torch.is_grad_enabled():
            with torch.no_grad():
                self._copy(inputs)
            return
        if not any(self.expanded):
            torch._foreach_copy_(self.buffers, inputs)
            return
        for buffer, x, dims in zip(self.buffers, inputs, self.expanded, strict=True):
            index_expanded_dims_and_copy_(buffer, x, dims)


_GIVEN = object()  # in a template: the next of the captured outputs


class _Alias:
    """An output that is an input read in place, or a view of one."""

    def __init__(self, index: int, output: torch.Tensor, source: torch.Tensor) -> None:
        self.index = index
        self.same = output is source
        self.size, self.stride = output.size(), output.stride()
        self.offset = output.storage_offset() - source.storage_offset()

    def of(self, source: torch.Tensor) -> torch.Tensor:
        if self.same:
            return source
        return source.as_strided(self.size, self.stride, source.storage_offset() + self.offset)
