"""Fixtures of torch.compile's tests."""

from slang_fixtures import in_new_process, slang

__all__ = ["in_new_process", "slang"]
