"""Inductor's heuristics where they differ for mps."""

from __future__ import annotations

import sympy
from torch._inductor.choices import InductorChoices
from torch._inductor.virtualized import V

from . import config
from .combo import MAX_ARGUMENTS
from .defaults import set_default
from .device import on_mps

# Of a fused kernel; the rest of a launch's arguments is for its numbers.
MAX_BUFFERS = MAX_ARGUMENTS * 3 // 4


class SlangChoices(InductorChoices):
    def uuid(self) -> str:
        return f"torch_anymps {config.generator}"

    @staticmethod
    def can_fuse(scheduler, node1, node2, shared_data_score: int) -> bool:
        if not InductorChoices.can_fuse(scheduler, node1, node2, shared_data_score):
            return False
        if not on_mps(node1):
            return True
        dependencies = [node.read_writes for node in (node1, node2)]
        if sum(len(d.reads) + len(d.writes) for d in dependencies) <= MAX_BUFFERS:
            return True  # without the count of different ones, which takes its time
        return not scheduler.fusion_prevent_too_many_reads_and_writes(node1, node2, MAX_BUFFERS)

    # PyTorch's is a static method up to 2.13.
    def reduction_split_factor(self, device, reduction_numel_hint: int, numel_hint: int, inner_reduction: bool) -> int:
        """Into how many partial ones a reduction is split: evenly where it can be, so that no load is masked."""
        split = super().reduction_split_factor(device, reduction_numel_hint, numel_hint, inner_reduction)
        if device.type != "mps" or split <= 1:
            return split
        return even_split(int(reduction_numel_hint), int(split), 4 if inner_reduction else 1)


def even_split(length: int, split: int, multiple: int) -> int:
    """The divisor of a length nearest to a split factor, within a factor of two of it; itself where there is none.

    Those that leave lengths which are a multiple of `multiple` come first.
    """
    near = [int(d) for d in sympy.divisors(length) if split <= 2 * d <= 4 * split]
    aligned = [d for d in near if length // d % multiple == 0]
    return min(aligned or near or [split], key=lambda d: max(d / split, split / d))


def install() -> None:
    """Makes these the heuristics, where the user has chosen none."""
    from torch._inductor import config as inductor_config

    if inductor_config.inductor_choices_class is None:
        set_default(inductor_config, "inductor_choices_class", SlangChoices)
        V.set_choices_handler(SlangChoices())  # this thread may have others already
