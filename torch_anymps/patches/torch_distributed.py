"""torch.distributed knows no process group for mps: "gloo", and no name at all, get one beside the CPU's."""

import functools
import os
import sys
import warnings

WHY = "Process groups of gloo, and those made without a name, move tensors of mps as well as those of the CPU."
TARGETS = ("torch.distributed.distributed_c10d", "torch.distributed.collective_utils")
NAME = "anymps"


def apply(module, replace):
    if module.__name__.endswith("collective_utils"):
        replace(module, "_check_rng_sync_internal", _with_own_generators(module))
        return
    if not module.is_gloo_available():
        raise RuntimeError("This build of PyTorch has no gloo.")
    backend = module.Backend
    kind = module.ProcessGroup.BackendType.CUSTOM
    plugin = backend._BackendPlugin(functools.partial(_create, module), False)
    replace(backend, NAME.upper(), NAME)
    replace(backend, "backend_list", [*backend.backend_list, NAME])
    replace(backend, "backend_type_map", {**backend.backend_type_map, NAME: kind})
    replace(backend, "backend_capability", {**backend.backend_capability, NAME: ["mps"]})
    replace(backend, "default_device_backend_map", {**backend.default_device_backend_map, "mps": NAME})
    replace(backend, "_plugins", {**backend._plugins, NAME.upper(): plugin})
    replace(module.BackendConfig, "__init__", _with_mps(module.BackendConfig.__init__))
    init = _with_own_device(module.init_process_group)
    for owner in (module, sys.modules.get("torch.distributed")):
        if hasattr(owner, "init_process_group"):
            replace(owner, "init_process_group", init)
    replace(module, "_mps_library", _sparse_operators())
    replace(module, "_set_pg_timeout", _with_own_timeout(module, module._set_pg_timeout))
    replace(module, "_new_process_group_helper", _with_default(module, module._new_process_group_helper))


def _create(c10d, store, rank, size, timeout):
    """The c10d backend for mps, with a gloo of its own to move the data. No pybind11 is needed to get it."""
    import torch

    _tell_of_sharing()
    group = c10d.ProcessGroup(store, rank, size)  # carries the C++ object here
    host = c10d.ProcessGroupGloo(store, rank, size, timeout=timeout)
    group._register_backend(torch.device("cpu"), c10d.ProcessGroup.BackendType.GLOO, host)
    torch.ops.anymps.attach_backend(group.boxed())
    return group._get_backend(torch.device("mps"))


def _with_own_generators(utils):
    """The states of mps are a seed and an offset, as CUDA's."""
    check = utils._check_rng_sync_internal

    @functools.wraps(check)
    def _check_rng_sync_internal(generator, group):
        return (utils._check_philox_rng_sync if generator.device.type == "mps" else check)(generator, group)

    return _check_rng_sync_internal


def _sparse_operators():
    """gloo sums sparse tensors, those of the CPU: no other backend takes them where groups are named as usual."""
    from torch.library import Library

    library = Library("c10d", "IMPL")  # its kernels live as long as it
    library.impl("allreduce_", _sum_sparse, "SparseMPS")
    return library


def _sum_sparse(tensors, group, op, sparse_indices, async_op=True, timeout=-1):
    import torch

    sums, work = torch.ops.c10d.allreduce_([x.cpu() for x in tensors], group, op, sparse_indices, async_op, timeout)
    work.wait()
    for tensor, total in zip(tensors, sums, strict=True):
        tensor.copy_(total)
    return tensors, work


@functools.cache
def _tell_of_sharing() -> None:
    """Once, by the first process of a machine whose launcher started more of them than there are devices."""
    import torch_anymps

    processes = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if processes == 1 or os.environ.get("LOCAL_RANK") != "0" or os.environ.get("ANYMPS_DEVICE"):
        return
    devices = torch_anymps.device_count()
    if processes > devices > 0:
        there = f"is {devices} device" if devices == 1 else f"are {devices} devices"
        warnings.warn(f"{processes} processes of this machine share mps devices: there {there}.", stacklevel=2)


def _with_mps(init):
    """Where gloo serves mps it is our backend; and a name, or none, serves the CPU too, as "gloo" always has."""

    @functools.wraps(init)
    def init_config(self, backend):
        import torch

        init(self, backend)
        devices = self.device_backend_map
        named = ":" in str(backend)
        if not named and devices.get("cpu") == "gloo" and torch.backends.mps.is_available():
            devices["mps"] = NAME
        if devices.get("mps") == "gloo":
            devices["mps"] = NAME
        if not named and devices.get("mps") == NAME:
            devices.setdefault("cpu", "gloo")
        if not named and devices.get("cpu") == "fake":  # of tests and dry runs: for every device that PyTorch lists
            devices["mps"] = "fake"

    return init_config


def _with_own_device(init):
    """device_id=torch.device("mps", LOCAL_RANK) is this process's one device, whose number of devices PyTorch asks."""

    @functools.wraps(init)
    def init_process_group(*args, device_id=None, **kwargs):
        import torch

        index = device_id if isinstance(device_id, int) else getattr(device_id, "index", None)
        if index and getattr(device_id, "type", "mps") == "mps" and torch.backends.mps.is_available():
            torch.accelerator.set_device_index(index)  # raises for what is not ours
            device_id = torch.device("mps", 0)
        return init(*args, device_id=device_id, **kwargs)

    return init_process_group


def _with_own_timeout(c10d, set_timeout):
    """PyTorch tells the backends whose names it knows."""

    @functools.wraps(set_timeout)
    def _set_pg_timeout(timeout, group=None):
        import torch

        set_timeout(timeout, group)
        group = group or c10d._get_default_group()
        if any(device.type == "mps" for device in group._device_types):
            group._get_backend(torch.device("mps")).set_timeout(timeout)

    return _set_pg_timeout


def _with_default(c10d, helper):
    """PyTorch gives a group of "device:backend" names no default backend where any plugin is registered."""

    @functools.wraps(helper)
    def new_group(*args, **kwargs):
        group, store = helper(*args, **kwargs)
        kind = c10d.ProcessGroup.BackendType
        if isinstance(group, c10d.ProcessGroup) and group.name() == "undefined" and group._device_types:
            has_cpu = any(device.type == "cpu" for device in group._device_types)
            group._set_default_backend(kind.GLOO if has_cpu else kind.CUSTOM)
        return group, store

    return new_group
