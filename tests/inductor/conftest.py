"""Fixtures of torch.compile's tests."""

import dataclasses

import pytest
from slang_fixtures import in_new_process, slang

__all__ = ["in_new_process", "slang"]


@pytest.fixture
def epilogues_everywhere(monkeypatch, slang):
    """Steps become parts of products on devices with matrix units, too, whose own choice is against it."""
    from torch_anymps.inductor import graph_passes

    config = dataclasses.replace(graph_passes.device_config(), matrix_units=False)
    monkeypatch.setattr(graph_passes, "device_config", lambda: config)
