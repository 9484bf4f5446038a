"""The inductor backend of torch.compile would emit Metal source for mps."""

WHY = "torch.compile's inductor backend says in a sentence that it cannot compile for mps here."
TARGETS = ("torch._inductor.codegen.common",)

SENTENCE = (
    "torch.compile with the inductor backend is not available for the mps device of torch-anymps: "
    'use torch.compile(backend="aot_eager"), or run without torch.compile.'
)


class _NoCode:
    """Stands where inductor looks for the writers of the code around and inside its kernels."""

    supports_caching = True

    @staticmethod
    def create(*_, **__):
        raise RuntimeError(SENTENCE)


def apply(module, replace):
    # Inductor registers its own writers only where there are none yet.
    codegens = dict(module.device_codegens)
    codegens["mps"] = module.DeviceCodegen(_NoCode, _NoCode, _NoCode, _NoCode)
    replace(module, "device_codegens", codegens)
