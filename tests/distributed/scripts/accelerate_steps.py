"""Under a launcher: steps of accelerate. Prints a line of JSON.

accelerate_steps.py BATCH [undone]   BATCH rows a process; with "undone" accelerate's patch is taken back first
"""

import sys

import torch

import torch_anymps.patches

if "undone" in sys.argv:
    torch_anymps.patches.undo("accelerate")
from accelerate import Accelerator
from report import report

accelerator = Accelerator()
torch.manual_seed(accelerator.process_index)  # DDP and FSDP give all ranks the weights of the first
model = torch.nn.Sequential(torch.nn.Linear(3, 6), torch.nn.GELU(), torch.nn.Linear(6, 1))
rows = torch.arange(48.0).view(16, 3) / 24
data = torch.utils.data.DataLoader(rows, batch_size=int(sys.argv[1]))
model, optimizer, data = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), data)
for x in data:
    optimizer.zero_grad()
    accelerator.backward(model(x).pow(2).mean())
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
accelerator.wait_for_everyone()
gathered = accelerator.gather(torch.tensor([float(accelerator.process_index)], device=accelerator.device))
weights = accelerator.get_state_dict(model)  # whole ones, of the first rank alone where they are sharded
result = {
    "weights": {name: value.cpu().flatten().tolist() for name, value in weights.items()},
    "sharded": any(hasattr(p, "full_tensor") for p in model.parameters()),
    "type": accelerator.distributed_type.name,
    "processes": accelerator.num_processes,
    "device": str(accelerator.device),
    "gathered": gathered.tolist(),
}
report(accelerator.process_index, **result)
accelerator.end_training()
