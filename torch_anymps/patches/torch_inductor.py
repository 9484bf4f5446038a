"""torch.compile's default backend, inductor, would emit Metal source for mps."""

import functools
import warnings

WHY = "torch.compile's default backend, inductor, hands graphs with mps tensors to aot_eager, with one warning."
TARGETS = ("torch._inductor.codegen.common", "torch._inductor.compile_fx")

WARNING = (
    "torch.compile's inductor backend generates no code for the mps device of torch-anymps yet: graphs with mps "
    'tensors are run operator by operator, as by torch.compile(backend="aot_eager"), which does not warn.'
)
SENTENCE = (
    "Inductor generates no code for the mps device of torch-anymps: "
    'use torch.compile, which runs such graphs by "aot_eager", or compile for the CPU.'
)


class _NoCode:
    """Stands where inductor looks for the writers of the code around and inside its kernels."""

    supports_caching = True

    def __new__(cls, *_, **__):
        raise RuntimeError(SENTENCE)

    @staticmethod
    def create(*_, **__):
        raise RuntimeError(SENTENCE)


def apply(module, replace):
    if module.__name__ == "torch._inductor.codegen.common":
        # Inductor registers its own writers only where there are none yet.
        codegens = dict(module.device_codegens)
        codegens["mps"] = module.DeviceCodegen(_NoCode, _NoCode, _NoCode, _NoCode)
        replace(module, "device_codegens", codegens)
    else:
        replace(module, "_compile_fx_main", _with_aot_eager(module._compile_fx_main, module.V))


def _with_aot_eager(compile_graph, virtualized):
    """Inductor's compilation of one graph, after its inputs and outputs were flattened, for every other device."""

    @functools.wraps(compile_graph)
    def compile_or_capture(model, example_inputs, *args, **kwargs):
        if not _has_mps(model, example_inputs):
            return compile_graph(model, example_inputs, *args, **kwargs)
        if virtualized.aot_compilation:  # the result is a library on disk
            raise RuntimeError(SENTENCE)
        from torch._dynamo.backends.debugging import aot_eager

        _warn_once()
        return aot_eager(model, example_inputs)

    return compile_or_capture


def _has_mps(model, example_inputs) -> bool:
    """Whether an input of a graph, or what one of its nodes makes, lies on mps."""
    import torch
    from torch.utils._pytree import tree_leaves

    graphs = [m.graph for m in model.modules() if isinstance(m, torch.fx.GraphModule)]
    values = [node.meta.get(key) for graph in graphs for node in graph.nodes for key in ("example_value", "val")]
    return any(isinstance(t, torch.Tensor) and t.device.type == "mps" for t in tree_leaves([example_inputs, values]))


@functools.cache
def _warn_once() -> None:
    warnings.warn(WARNING, stacklevel=2)
