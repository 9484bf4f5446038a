"""Build-time generators: registrations from PyTorch's native_functions.yaml, and the op tables."""
