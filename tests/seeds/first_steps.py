# The first lines of a tutorial: a tensor made on the device, one operation, a model moved to it.
import torch
from torch import nn

mps_device = torch.device("mps")
x = torch.ones(5, device=mps_device)
assert torch.equal(x.cpu(), torch.ones(5, device="mps").cpu())
y = torch.ones(5, device="mps") * 2
print(y)

model = nn.Sequential(nn.Linear(5, 3), nn.ReLU(), nn.Linear(3, 1))
model.to(mps_device)
prediction = model(x)
print(prediction.shape, prediction.device, next(model.parameters()).device)
