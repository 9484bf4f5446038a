# A first training step of a small convolutional net, on the device and on the CPU; prints both losses.
import torch
import torch.nn.functional as F
from torch import nn, optim


class SimpleCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, kernel_size=3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.fc1 = nn.Linear(16 * 16 * 16, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        return self.fc1(x.view(x.size(0), -1))


def train(device, steps=3):
    torch.manual_seed(0)
    model = SimpleCNN()
    inputs = torch.randn(32, 3, 32, 32)
    labels = torch.randint(0, 10, (32,))
    model, inputs, labels = model.to(device), inputs.to(device), labels.to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


for name in ("mps", "cpu"):
    print(name, *(f"{loss:.6f}" for loss in train(torch.device(name))))
