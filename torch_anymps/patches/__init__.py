"""What Python libraries must be told for mps to work on Linux: one module a library, one registry, each undoable.

A patch module has WHY (a sentence), TARGETS (modules after whose import it applies) and
apply(module, replace), where replace(owner, attribute, value) is an undoable setattr, or of a dict an undoable entry.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType

_ABSENT = object()
NAMES = (
    "torch_mps",
    "torch_profiler",
    "torch_storage",
    "torch_foreach",
    "torch_optim",
    "torch_autocast",
    "torch_higher_order",
    "torch_convolution",
    "torch_dynamo",
    "torch_fake_strides",
    "torch_autograd_cache",
    "torch_flex_attention",
    "torch_nested_attention",
    "torch_inductor",
    "torch_inductor_replay",
    "torch_checkpoint_random",
    "torch_flop_counter",
    "torch_distributed",
    "torch_ddp",
    "torch_fsdp",
    "torch_context_parallel",
    "torch_mps_module",
    "torch_sync_batch_norm",
    "accelerate",
    "accelerate_check",
    "lightning",
    "optimum_quanto",
    "gpytorch",
)


class Patch:
    """One patch module and what it has replaced so far."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._module = importlib.import_module(f"{__name__}.{name}")
        self.why: str = self._module.WHY
        self.targets: tuple[str, ...] = self._module.TARGETS
        self.error = ""
        self._originals: list[tuple[object, object, object]] = []

    @property
    def in_force(self) -> bool:
        return bool(self._originals)

    def apply(self, target: ModuleType) -> None:
        """Never raises: a library that has changed must still import. What does not fit its version is left out as a
        whole for this target; info says why."""
        before = len(self._originals)
        try:
            self._module.apply(target, self._replace)
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
            self.undo(before)

    def undo(self, keep: int = 0) -> None:
        """Takes back what was replaced, but for the first `keep`."""
        for owner, attribute, original in reversed(self._originals[keep:]):
            if original is not _ABSENT:
                _set(owner, attribute, original)
            elif isinstance(owner, dict):
                del owner[attribute]
            else:
                delattr(owner, attribute)
        del self._originals[keep:]

    def _replace(self, owner: object, attribute: object, value: object) -> None:
        # vars(), not getattr(): a staticmethod must be put back as a staticmethod, an inherited attribute not at all
        table = owner if isinstance(owner, dict) else vars(owner)
        self._originals.append((owner, attribute, table.get(attribute, _ABSENT)))
        _set(owner, attribute, value)


def _set(owner: object, attribute: object, value: object) -> None:
    if isinstance(owner, dict):
        owner[attribute] = value
    else:
        setattr(owner, attribute, value)


class _PostImportFinder:
    """Finder on sys.meta_path that applies patches after a module they wait for has been executed."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Patch]] = {}

    def find_spec(self, name, path=None, target=None):
        if name not in self.waiting:
            return None
        patches = self.waiting.pop(name)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_patch(module):
                execute(module)
                for patch in patches:
                    patch.apply(module)

            spec.loader.exec_module = execute_and_patch
        return spec


_PATCHES: dict[str, Patch] = {}
_finder = _PostImportFinder()


def install() -> None:
    """Applies every patch whose library is imported already; the others follow when theirs is."""
    for name in NAMES:
        patch = _PATCHES[name] = Patch(name)
        for target in patch.targets:
            if target in sys.modules:
                patch.apply(sys.modules[target])
            else:
                _finder.waiting.setdefault(target, []).append(patch)
    sys.meta_path.insert(0, _finder)


def registered() -> list[Patch]:
    """All patches of this process, whether their library has been imported or not."""
    return list(_PATCHES.values())


def undo(name: str) -> None:
    """Takes one patch back, e.g. undo("lightning"); it does not come again in this process.

    Raises KeyError for a name that is not registered.
    """
    patch = _PATCHES.pop(name)
    for waiting in _finder.waiting.values():
        if patch in waiting:
            waiting.remove(patch)
    patch.undo()
