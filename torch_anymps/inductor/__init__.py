"""torch.compile's default backend for mps: Inductor's loops as Slang kernels. docs/compile.md tells how it works.

Loaded when Inductor first looks for its backends (torch_anymps/patches/torch_inductor.py), never by `import torch`.
"""

from __future__ import annotations

import functools
import hashlib
import os
import pathlib


@functools.cache
def register() -> None:
    """Registers the backend with Inductor, once. Raises RuntimeError where the Slang compiler is not installed."""
    from torch._inductor import config as inductor_config
    from torch._inductor.codegen.common import register_backend_for_device
    from torch._inductor.codegen.wrapper_fxir import WrapperFxCodegen

    from . import choices, combo, config, cpp_wrapper, index_values, mix_order, plans, scheduling
    from .defaults import set_default
    from .device import device_config
    from .gelu_formula import GeluFormula
    from .graph_passes import GraphPasses
    from .lowering import register_decompositions
    from .mask_passes import MaskPass
    from .replay import ReplayPolicy
    from .runtime import compiler_version
    from .scheduling import SlangScheduling, SlangWrapper

    set_default(config, "compiler", compiler_version())
    set_default(config, "device", repr(device_config()))
    set_default(config, "generator", _generator_version())
    register_backend_for_device(
        "mps", SlangScheduling, SlangWrapper, cpp_wrapper.SlangCppWrapper, WrapperFxCodegen, GraphPasses(), config
    )
    cpp_wrapper.register()
    if "TORCHINDUCTOR_LAYOUT_OPTIMIZATION" not in os.environ:
        set_default(inductor_config, "layout_optimization", False)  # the memory format is the caller's choice
    choices.install()
    index_values.install()
    plans.install()
    combo.install()
    mix_order.install()
    scheduling.install()
    set_default(inductor_config, "pre_grad_custom_pass", GeluFormula())
    set_default(inductor_config, "joint_custom_pre_pass", MaskPass())
    set_default(inductor_config, "cudagraph_policy", ReplayPolicy())
    register_decompositions()


def _generator_version() -> str:
    """Of the files that decide about a kernel's text."""
    from torch_anymps import __version__

    files = sorted(pathlib.Path(__file__).parent.glob("*.py"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files))
    return f"{__version__} {digest.hexdigest()[:16]}"
