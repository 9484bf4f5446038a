"""The build backend of pyproject.toml: scikit-build-core, and the PyTorch that the package is built for.

That is the one which is installed where the package goes; pip builds in an environment of its own, which would get the
newest. Where none is installed it is the newest that the package serves.
"""

from __future__ import annotations

import importlib.metadata
import re
import sysconfig
from pathlib import Path

from scikit_build_core import build as _scikit
from scikit_build_core.build import (  # noqa: F401
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)


def get_requires_for_build_wheel(config_settings=None) -> list[str]:
    return [*_scikit.get_requires_for_build_wheel(config_settings), torch_requirement(sysconfig.get_path("purelib"))]


def get_requires_for_build_editable(config_settings=None) -> list[str]:
    return [*_scikit.get_requires_for_build_editable(config_settings), torch_requirement(sysconfig.get_path("purelib"))]


def torch_requirement(site_packages: str) -> str:
    """The requirement on torch for a build beside what lies in a folder: "torch==2.13.*" beside torch 2.13.0+cpu."""
    for torch in importlib.metadata.distributions(name="torch", path=[site_packages]):
        return "torch=={}.{}.*".format(*torch.version.split(".")[:2])
    text = (Path(__file__).parent.parent / "pyproject.toml").read_text()
    return re.search(r'^dependencies = \["(torch[^"]+)"\]$', text, re.MULTILINE)[1]
