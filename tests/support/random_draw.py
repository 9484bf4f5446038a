"""The random choices of a call: shapes, strides, offsets and values. Every tensor is hidden in a larger storage."""

from __future__ import annotations

import math
import random

import torch

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
BOOL = (torch.bool,)
COMPLEX = (torch.complex64,)
REAL = (*FLOATS, *INTEGERS)
ALL = (*REAL, *BOOL)
SIZES = (0, 1, 2, 3, 5, 31, 32, 33, 255, 256, 257)
LARGE = (65535, 65536, 65537)
MOST = 1 << 18  # elements of a tensor
SPECIAL = (math.nan, math.inf, -math.inf, -0.0, 0.0, 1.0, -1.0, 65504.0, 1e-4, 0.5)


class Draw:
    """The random choices of one call."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)

    def choice(self, items):
        return self.random.choice(items)

    def integer(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def shape(self, least: int = 0, most: int = 5, empty: bool = True, limit: int = MOST) -> list[int]:
        sizes: list[int] = []
        for _ in range(self.integer(least, most)):
            room = limit // math.prod(max(1, n) for n in sizes)  # broadcast() turns sizes of 0 into 1
            large = room >= LARGE[-1] and self.random.random() < 0.05
            fitting = [s for s in (LARGE if large else SIZES) if s <= room and (s > 0 or empty)]
            if 0 in fitting and self.random.random() < 0.8:
                fitting.remove(0)
            sizes.append(self.choice(fitting or [1]))
        self.random.shuffle(sizes)
        return sizes

    def values(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Numbers of moderate size, now and then with special ones or from the whole range of an integer type."""
        if dtype == torch.bool:
            return torch.randint(0, 2, (count,), generator=self.generator).to(dtype)
        if dtype in INTEGERS:
            info = torch.iinfo(dtype)
            whole = self.random.random() < 0.2
            low, high = (info.min, info.max) if whole else (max(-9, info.min), 10)
            return torch.randint(low, high, (count,), generator=self.generator, dtype=dtype)
        kind = torch.complex64 if dtype == torch.complex64 else torch.float32
        numbers = torch.randn(count, generator=self.generator, dtype=kind) * self.choice((1, 1, 4, 100))
        if dtype != torch.complex64 and count and self.random.random() < 0.2:
            places = torch.randint(0, count, (1 + count // 7,), generator=self.generator)
            which = torch.randint(0, len(SPECIAL), places.shape, generator=self.generator)
            numbers[places] = torch.tensor(SPECIAL)[which]
        return numbers.to(dtype)

    def tensor(self, shape, dtype: torch.dtype, plain: bool = False, writable: bool = False) -> torch.Tensor:
        """A tensor of a shape with random strides and offset. writable: no two elements share memory."""
        shape = list(shape)
        layouts = ["contiguous", "contiguous", "permuted", "sliced", "offset"]
        layouts += ["expanded"] if not writable and shape else []
        layouts += ["channels_last"] * 2 if len(shape) == 4 else []
        layout = "contiguous" if plain else self.choice(layouts)
        if layout == "permuted":
            order = self.random.sample(range(len(shape)), len(shape))
            inverse = [order.index(i) for i in range(len(shape))]
            return self._dense([shape[i] for i in order], dtype).permute(inverse)
        if layout == "sliced":
            steps = [self.choice((1, 1, 2, 3)) for _ in shape]
            starts = [self.choice((0, 0, 1, 2)) for _ in shape]
            wider = [s + n * step for s, n, step in zip(starts, shape, steps)]
            if math.prod(wider) <= 8 * MOST:
                slices = tuple(slice(s, s + n * step, step) for s, n, step in zip(starts, shape, steps))
                return self._dense(wider, dtype)[slices]
        if layout == "offset":
            count, offset = math.prod(shape), self.integer(1, 7)
            return self._dense([count + offset + 3], dtype)[offset : offset + count].view(shape)
        if layout == "expanded":
            dim = self.integer(0, len(shape) - 1)
            return self._dense([1 if i == dim else n for i, n in enumerate(shape)], dtype).expand(shape)
        if layout == "channels_last":
            return self._dense(shape, dtype).contiguous(memory_format=torch.channels_last)
        return self._dense(shape, dtype)

    def _dense(self, shape, dtype: torch.dtype) -> torch.Tensor:
        return self.values(math.prod(shape), dtype).reshape(shape)

    def broadcast(self, shape) -> list[int]:
        """A shape that broadcasts to this one."""
        kept = [n if self.random.random() < 0.7 else 1 for n in shape]
        return kept[self.integer(0, len(kept)) :] if self.random.random() < 0.3 else kept

    def indices(self, shape, bound: int) -> torch.Tensor:
        return torch.randint(0, bound, tuple(shape), generator=self.generator)
