"""torch.UntypedStorage(n, device="mps") is refused by the C constructor of builds without Apple's backend."""

WHY = "torch.UntypedStorage(n, device='mps') makes a storage; torch.load, pickle and safetensors need it."
TARGETS = ("torch",)


def apply(module, replace):
    torch = module
    plain_new = torch._C.StorageBase.__new__

    def new(cls, *args, device=None, **kwargs):
        if device is None or torch.device(device).type != "mps":
            return plain_new(cls, *args, **kwargs) if device is None else plain_new(cls, *args, device=device, **kwargs)
        if kwargs or len(args) > 1:
            return plain_new(cls, *args, device=device, **kwargs)  # raises PyTorch's own error
        content = args[0] if args else 0
        if isinstance(content, int):
            tensor = torch.empty(content, dtype=torch.uint8, device=device)
        else:
            tensor = torch.tensor(list(content), dtype=torch.uint8, device=device)
        return tensor.untyped_storage()

    replace(torch.UntypedStorage, "__new__", staticmethod(new))
