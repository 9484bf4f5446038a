"""Under a launcher: two steps of accelerate. With "undone" its patch is taken back first. Prints a line of JSON."""

import sys

import torch

import torch_anymps.patches

if "undone" in sys.argv:
    torch_anymps.patches.undo("accelerate")
from accelerate import Accelerator
from report import report

accelerator = Accelerator()
torch.manual_seed(accelerator.process_index)  # DDP gives all ranks the weights of the first
model = torch.nn.Linear(3, 1)
data = torch.utils.data.DataLoader(torch.arange(24.0).view(8, 3) / 24, batch_size=2)
model, optimizer, data = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1), data)
for x in data:
    optimizer.zero_grad()
    accelerator.backward(model(x).pow(2).mean())
    optimizer.step()
accelerator.wait_for_everyone()
gathered = accelerator.gather(torch.tensor([float(accelerator.process_index)], device=accelerator.device))
result = {
    "weights": [p.tolist() for p in model.parameters()],
    "type": accelerator.distributed_type.name,
    "processes": accelerator.num_processes,
    "device": str(accelerator.device),
    "gathered": gathered.tolist(),
}
report(accelerator.process_index, **result)
accelerator.end_training()
