"""Random graphs for torch.compile: small Python functions of pointwise operations, reductions, views and indexing.

A graph is drawn while it is run on the CPU, with a bound of what its results may differ by on another device: float
operations carry the bounds of their operands on, integers are exact, and what jumps (comparisons, conversions to
integers, positions) takes exact operands only.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

FLOATS = (torch.float32, torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.uint8, torch.int8, torch.bool)
# Of a result, relative to the largest value it was made of: functions of f32 are good to a few units of 2^-24.
ROUNDING = {torch.float32: 2.0**-20, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
LARGEST = 100.0  # of floats
MAX_ELEMENTS = 20000


@dataclass
class Value:
    """A tensor on the CPU, the text that names it, and how far from it another device may be (0: exact)."""

    tensor: torch.Tensor
    name: str
    error: float = 0.0

    @property
    def most(self) -> float:
        return self.tensor.double().abs().max().item() if self.tensor.numel() else 0.0

    @property
    def is_float(self) -> bool:
        return self.tensor.is_floating_point()


@dataclass
class Graph:
    """arguments: of `function`, whose lines are `source`. errors: absolute bounds of its results, in their order."""

    seed: int
    arguments: list[torch.Tensor] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    results: list[Value] = field(default_factory=list)
    dynamic: bool | None = None

    @property
    def source(self) -> str:
        names = ", ".join(f"a{n}" for n in range(len(self.arguments)))
        returned = ", ".join(value.name for value in self.results)
        return "\n    ".join([f"def function({names}):", *self.lines, f"return ({returned},)"]) + "\n"

    @property
    def function(self) -> Callable:
        names: dict = {"torch": torch, "F": torch.nn.functional}
        exec(compile(self.source, f"<graph {self.seed}>", "exec"), names)
        return names["function"]


class Drawing:
    """A graph in the making."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.graph = Graph(seed, dynamic=self.random.choice((None, None, True)))
        self.values: list[Value] = []
        self.used: set[str] = set()

    # --- inputs

    def argument(self, tensor: torch.Tensor) -> Value:
        value = Value(tensor, f"a{len(self.graph.arguments)}")
        self.graph.arguments.append(tensor.clone(memory_format=torch.preserve_format))
        return value

    def filled(self, sizes, dtype: torch.dtype) -> torch.Tensor:
        if dtype == torch.bool:
            return torch.randint(0, 2, sizes, generator=self.generator).bool()
        if not dtype.is_floating_point:
            low = 0 if dtype == torch.uint8 else -9
            return torch.randint(low, 10, sizes, generator=self.generator).to(dtype)
        return (torch.randn(sizes, generator=self.generator) * 8).round().div(8).to(dtype)

    def input(self, sizes=None, dtype=None) -> Value:
        r = self.random
        if sizes is None:
            sizes = [r.choice((1, 2, 3, 4, 5, 8, 13, 32, 65)) for _ in range(r.choice((1, 2, 2, 2, 3)))]
        tensor = self.filled(sizes, dtype or r.choice(FLOATS + INTEGERS))
        if tensor.dim() > 1 and r.random() < 0.3:
            tensor = tensor.transpose(0, -1).contiguous().transpose(0, -1)
        value = self.argument(tensor)
        self.values.append(value)
        return value

    # --- steps

    def pick(self, wanted=lambda v: True) -> Value | None:
        """A value, of the later ones more often, that is exact where it must be."""
        found = [v for v in self.values if wanted(v)]
        return self.random.choice(found[-5:] if self.random.random() < 0.7 else found) if found else None

    def fitting(self, value: Value, wanted=lambda v: True) -> Value | None:
        """Another value whose shape goes with that of a value."""

        def goes(v):
            try:
                return wanted(v) and torch.broadcast_shapes(v.tensor.shape, value.tensor.shape) is not None
            except RuntimeError:
                return False

        return self.pick(goes)

    def add(self, text: str, error: float, *operands: Value) -> None:
        """A step: its text with operands' names in place of {0}, {1}, ...; nothing where it cannot be run."""
        scope = {"torch": torch, "F": torch.nn.functional, **{v.name: v.tensor for v in operands}}
        line = text.format(*(v.name for v in operands))
        try:
            result = eval(line, scope)
        except (RuntimeError, IndexError, TypeError, ValueError):
            return
        value = Value(result, f"v{len(self.graph.lines)}")
        if not isinstance(result, torch.Tensor) or not 0 < result.numel() <= MAX_ELEMENTS:
            return
        if value.is_float:
            if result.dtype not in ROUNDING or not value.most <= LARGEST:
                return
            most = max([value.most, *(v.most for v in operands if v.is_float)])
            exact = error == 0.0 and all(v.error == 0.0 for v in operands)
            value.error = 0.0 if exact else error + ROUNDING[result.dtype] * most
        self.used.update(v.name for v in operands)
        self.graph.lines.append(f"{value.name} = {line}")
        self.values.append(value)

    def step(self) -> None:
        from random_graph_steps import STEPS

        self.random.choice(STEPS)(self)


def random_graph(seed: int) -> Graph:
    drawing = Drawing(seed)
    for _ in range(drawing.random.choice((1, 2, 3))):
        drawing.input()
    wanted = drawing.random.randint(3, 12)
    for _ in range(6 * wanted):
        if len(drawing.graph.lines) >= wanted:
            break
        drawing.step()
    steps = [v for v in drawing.values if v.name.startswith("v")]
    drawing.graph.results = [v for v in steps if v.name not in drawing.used or drawing.random.random() < 0.1]
    return drawing.graph


def difference(value: Value, other: torch.Tensor) -> str:
    """Of a result from that on another device, where it is more than may be; '' otherwise."""
    mine = value.tensor
    if other.shape != mine.shape or other.dtype != mine.dtype:
        return f"{value.name}: {other.dtype} {tuple(other.shape)} instead of {mine.dtype} {tuple(mine.shape)}"
    apart = (other.cpu().double() - mine.double()).abs()
    limit = 2 * value.error + (ROUNDING[mine.dtype] * value.most if value.error else 0.0)
    worst = apart.max().item()
    if worst <= limit:
        return ""
    at = math.prod(mine.shape) and int(apart.nan_to_num(math.inf).argmax())
    got, want = other.cpu().flatten()[at].item(), mine.flatten()[at].item()
    return f"{value.name}: {got} instead of {want} at {at} of {tuple(mine.shape)} {mine.dtype}, allowed {limit:.2g}"
