# The three ways in which scripts choose their device.
import torch

by_mps = "mps" if torch.backends.mps.is_available() else "cuda" if torch.cuda.is_available() else "cpu"
by_cuda = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
by_accelerator = torch.accelerator.current_accelerator().type if torch.accelerator.is_available() else "cpu"
print(by_mps, by_cuda, by_accelerator)
