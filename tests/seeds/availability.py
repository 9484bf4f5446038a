# The three answers to "can I use mps here?".
import torch

if torch.backends.mps.is_available():
    print("available")
elif torch.backends.mps.is_built():
    print("built, but this machine has no device for it")
else:
    print("this PyTorch was not built with MPS")
