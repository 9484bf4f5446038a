"""The patches of torch.distributed, DistributedDataParallel and FSDP leave nothing behind where they are undone."""

SOURCE = """
import importlib, warnings
import torch
warnings.simplefilter("ignore")
import torch.distributed as dist

NAMES = ("torch_distributed", "torch_ddp", "torch_fsdp")
OPERATORS = [("fsdp::" + name, "MPS") for name in ("all_gather_copy_in", "split_with_sizes_copy", "chunk_cat")]
OPERATORS.append(("c10d::allreduce_", "SparseMPS"))
FSDP = "torch.distributed.fsdp"
TARGETS = {
    "torch.distributed.distributed_c10d", "torch.distributed.collective_utils", "torch.nn.parallel.distributed",
    FSDP + "._fully_shard._fsdp_collectives", FSDP + "._fully_shard._fsdp_state", FSDP + ".sharded_grad_scaler",
    FSDP + "._init_utils",
}
targets = [importlib.import_module(target) for target in TARGETS]

def state():
    found = {}
    for module in (dist, *targets):
        for name, value in vars(module).items():
            found[module.__name__, name] = id(value)
            if isinstance(value, type):
                found |= {(module.__name__, name, member): id(vars(value)[member]) for member in vars(value)}
    return found, [torch._C._dispatch_has_kernel_for_dispatch_key(*operator) for operator in OPERATORS]

before = state()
torch._import_device_backends()
from torch_anymps import patches
named = [patch for patch in patches.registered() if patch.name in NAMES]
assert len(named) == 3 and all(patch.in_force and not patch.error for patch in named)
assert TARGETS == {target for patch in named for target in patch.targets}
applied = state()
assert len(set(applied[0].items()) - set(before[0].items())) > 20 and all(applied[1]) and not any(before[1])
for name in NAMES:
    patches.undo(name)
assert state() == before, (set(before[0].items()) ^ set(state()[0].items()), state()[1])

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
x = torch.ones(2)
dist.all_reduce(x)
try:
    dist.all_reduce(torch.ones(2, device="mps"))
except RuntimeError as error:
    print(error)
print(torch.ones(3, device="mps").sum().item(), x.tolist())
"""


def test_undo(run_python, mps):
    done = run_python(SOURCE, env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, fresh=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["No backend type associated with device type mps", "3.0 [1.0, 1.0]"]
