"""What generated code depends on besides the graph: Inductor puts these values into the keys of its caches."""

import sys

from torch.utils._config_module import install_config_module

device: str = ""  # DeviceConfig of the device that code is generated for
compiler: str = ""  # version of Slang
generator: str = ""  # of torch_anymps and of the files that write the code

install_config_module(sys.modules[__name__])
