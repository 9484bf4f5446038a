"""How Inductor's caches know graphs that passes of this package have changed."""

from __future__ import annotations

from . import config


class OfThisGenerator:
    """A custom pass that is what this version of the package makes it: the first base of its class."""

    def uuid(self) -> str:
        return config.generator
