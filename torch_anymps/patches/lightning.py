"""Lightning takes mps where platform.processor() is arm alone, never for several processes, and FSDP on CUDA alone."""

import functools
import os

WHY = "Lightning takes mps where it is available, not on ARM alone, and DDP and FSDP on mps, a process a device."
# By the end of a module's name in the packages lightning.fabric, lightning.pytorch and their two older names.
PARTS = (
    "accelerators.mps",
    "connector",
    "trainer.connectors.accelerator_connector",
    "strategies.ddp",
    "plugins.precision.fsdp",
)
FABRIC, PYTORCH = ("lightning.fabric", "lightning_fabric"), ("lightning.pytorch", "pytorch_lightning")
TARGETS = tuple(f"{package}.{part}" for package in (*FABRIC, *PYTORCH) for part in PARTS)


def apply(module, replace):
    if module.__name__.endswith("accelerators.mps"):
        accelerator = module.MPSAccelerator
        if module.__name__.startswith(FABRIC):
            replace(accelerator, "is_available", staticmethod(_is_available))
        replace(accelerator, "parse_devices", staticmethod(_parse_devices))
        replace(accelerator, "get_parallel_devices", staticmethod(_parallel_devices))
        replace(accelerator, "auto_device_count", staticmethod(_device_count))
    elif module.__name__.endswith("connector"):
        connector = getattr(module, "_Connector", None) or module._AcceleratorConnector
        name = "_check_config_and_set_final_flags"
        replace(connector, name, _without_refusal(module, getattr(connector, name)))
        name = "_check_strategy_and_fallback"
        replace(connector, name, _as_a_gpu(getattr(connector, name)))
    elif module.__name__.endswith("precision.fsdp"):
        replace(module.FSDPPrecision, "forward_context", _autocast_on_mps(module.FSDPPrecision.forward_context))
    else:
        for name in ("determine_ddp_device_ids", "_determine_ddp_device_ids"):
            if hasattr(module.DDPStrategy, name):
                replace(module.DDPStrategy, name, _no_ids_on_mps(getattr(module.DDPStrategy, name)))


def _is_available() -> bool:
    """MPS is available where torch says so, and DISABLE_MPS=1 turns it off as Lightning has it."""
    import torch

    return os.getenv("DISABLE_MPS", "0") != "1" and torch.backends.mps.is_available()


def _device_count() -> int:
    import torch_anymps

    return torch_anymps.device_count()


def _parse_devices(devices) -> list[int]:
    """One number a process: `devices` is their count, a list of them, the text of either, or -1 or "auto"."""
    if isinstance(devices, str) and devices != "auto":
        devices = [int(d) for d in devices.split(",") if d.strip()] if "," in devices else int(devices)
    if devices in (-1, "auto"):
        devices = _device_count()
    return list(range(devices)) if isinstance(devices, int) else list(devices)


def _parallel_devices(devices):
    """mps:0 for each process: which GPU that is, LOCAL_RANK tells in each of them."""
    import torch

    return [torch.device("mps", 0)] * len(_parse_devices(devices))


def _without_refusal(module, check):
    """The method asks MPSAccelerator.is_available(), for nothing but to refuse DDP."""

    @functools.wraps(check)
    def check_config(self, *args, **kwargs):
        accelerator = module.MPSAccelerator
        module.MPSAccelerator = type(accelerator.__name__, (accelerator,), {"is_available": staticmethod(bool)})
        try:
            return check(self, *args, **kwargs)
        finally:
            module.MPSAccelerator = accelerator

    return check_config


def _as_a_gpu(check):
    """The method asks for the name of the accelerator, for nothing but to refuse FSDP."""

    @functools.wraps(check)
    def check_strategy(self, *args, **kwargs):
        flag = self._accelerator_flag
        if flag == "mps" or type(flag).__name__ == "MPSAccelerator":
            self._accelerator_flag = "gpu"
        try:
            return check(self, *args, **kwargs)
        finally:
            self._accelerator_flag = flag

    return check_strategy


def _autocast_on_mps(context):
    """Autocast to the dtype that Lightning has chosen, for mps instead of CUDA."""

    @functools.wraps(context)
    def forward_context(self):
        import torch

        if "mixed" not in self.precision or not _is_available() or torch.cuda.is_available():
            return context(self)
        return torch.autocast("mps", dtype=torch.bfloat16 if self.precision == "bf16-mixed" else torch.float16)

    return forward_context


def _no_ids_on_mps(determine):
    """With an id Lightning makes a stream of CUDA."""

    @functools.wraps(determine)
    def ids(self):
        return None if self.root_device.type == "mps" else determine(self)

    return ids
