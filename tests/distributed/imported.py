"""What the processes of Ranks are copied from: PyTorch, imported but for backends, which load in each process."""

import gc
import os

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
import torch  # noqa: E402, F401
import torch.distributed  # noqa: E402, F401

del os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"]
gc.collect()
gc.freeze()  # copies do not visit these objects, which would copy their memory
