"""The inductor backend of torch.compile would emit Metal source for mps."""

WHY = "torch.compile's inductor backend says in a sentence that it cannot compile for mps here."
TARGETS = ("torch._inductor.codegen.common",)

SENTENCE = (
    "torch.compile with the inductor backend is not available for the mps device of torch-anymps: "
    'use torch.compile(backend="aot_eager"), or run without torch.compile.'
)


class _NoScheduling:
    def __init__(self, scheduler) -> None:
        raise RuntimeError(SENTENCE)


def apply(module, replace):
    # Inductor registers its own scheduling only where there is none yet.
    codegens = dict(module.device_codegens)
    codegens["mps"] = module.DeviceCodegen(_NoScheduling, None)
    replace(module, "device_codegens", codegens)
