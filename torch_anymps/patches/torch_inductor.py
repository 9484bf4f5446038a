"""torch.compile's default backend, inductor, would emit Metal source for mps: torch_anymps.inductor emits Slang."""

import functools
import warnings

WHY = "torch.compile's default backend, inductor, generates Slang kernels for mps instead of Metal source."
TARGETS = ("torch._inductor.codegen.common", "torch._inductor.compile_fx", "torch._dynamo.device_interface")

WARNING = (
    "torch.compile needs the Slang compiler to generate code for mps, which is not installed (pip install "
    "'torch-anymps[compile]'): graphs with mps tensors are run operator by operator, as by "
    'torch.compile(backend="aot_eager"), which does not warn.'
)

WITHOUT_CPP = (
    "AOTInductor and torch._inductor.config.cpp_wrapper need a C++ compiler, and there is none: install g++, or name "
    "one in the environment variable CXX."
)


def apply(module, replace):
    if module.__name__ == "torch._inductor.codegen.common":
        # Inductor registers its own writers only where there are none yet.
        replace(module, "init_backend_registration", _with_slang(module.init_backend_registration))
    elif module.__name__ == "torch._dynamo.device_interface":
        replace(module.MpsInterface, "device", staticmethod(_device))  # around what max-autotune measures
    else:
        replace(module, "_compile_fx_main", _with_aot_eager(module._compile_fx_main, module.V, module.config))


def _device(device):
    import torch

    return torch.mps.device(device)


@functools.cache
def _has_compiler() -> bool:
    from torch_anymps.inductor import runtime

    return runtime.compiler_library() is not None


def _register() -> None:
    import torch

    if _has_compiler() and torch.backends.mps.is_available():
        from torch_anymps import inductor

        inductor.register()


def _with_slang(register_backends):
    @functools.wraps(register_backends)
    def register():
        _register()
        register_backends()

    return register


def _with_aot_eager(compile_graph, virtualized, inductor_config):
    """Inductor's compilation of one graph, after its inputs and outputs were flattened; not where Slang is missing."""

    @functools.wraps(compile_graph)
    def compile_or_capture(model, example_inputs, *args, **kwargs):
        in_cpp = virtualized.aot_compilation or inductor_config.cpp_wrapper
        if not _has_mps(model, example_inputs):
            return compile_graph(model, example_inputs, *args, **kwargs)
        if in_cpp:
            _check_compilers()
        if _has_compiler():
            _register()  # before the graph is traced, by the decompositions that there are
            return compile_graph(model, example_inputs, *args, **kwargs)
        from torch._dynamo.backends.debugging import aot_eager

        _warn_once()
        return aot_eager(model, example_inputs)

    return compile_or_capture


def _check_compilers() -> None:
    """Raises, with one sentence, where a compiler is missing that modules in C++ need."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    from torch_anymps.compiler import compiler_version

    compiler_version("AOTInductor")
    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        raise RuntimeError(WITHOUT_CPP) from error


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
