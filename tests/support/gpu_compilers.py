"""The compilers that Mesa has for GPUs: how each is reached without the GPU, and what its statistics are called."""

from __future__ import annotations

import glob
import os
import pathlib
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Compiler:
    driver: str  # of Mesa, by the name of its file in icd.d
    name: str  # part of the device's
    spills: tuple[str, ...]  # the statistic that tells of them, by the names that versions have for it
    env: dict[str, str] = field(default_factory=dict)
    shim: str | None = None
    forbidden: str | None = None  # a statistic that must be 0
    costs: tuple[str, ...] = ()  # statistics of which more is worse, compared with those of the last release
    gains: tuple[str, ...] = ()  # those of which less is worse
    # What runs nothing, but has memory to launch with, where the compiler alone has none: a shim and its variables.
    launches: tuple[str, dict[str, str]] | None = None

    def spilled(self, statistics: dict[str, float]) -> float:
        """Registers that a kernel keeps in memory, by its statistics."""
        if self.forbidden is not None:
            return statistics[self.forbidden]
        return next(statistics[name] for name in self.spills if name in statistics)

    def environment(self, launches: bool = False) -> dict[str, str]:
        """Variables by which a process gets this compiler, and with `launches` one that has memory to launch with.

        Raises LookupError with the reason where this machine lacks the driver or the shim.
        """
        shim, variables = self.launches if launches and self.launches else (self.shim, self.env)
        env = dict(variables)
        if shim is not None:
            folder = os.environ.get("ANYMPS_DRM_SHIMS")
            if folder is None:
                raise LookupError("ANYMPS_DRM_SHIMS names no folder with Mesa's drm shims")
            library = pathlib.Path(folder) / f"lib{shim}_noop_drm_shim.so"
            if not library.exists():
                raise LookupError(f"{library} is missing")
            env["LD_PRELOAD"] = str(library)
        drivers = glob.glob(f"/usr/share/vulkan/icd.d/{self.driver}_icd*.json")
        if not drivers:
            raise LookupError(f"this machine's Mesa has no driver {self.driver} (package mesa-vulkan-drivers)")
        # What comes from Mesa's cache has no statistics.
        env |= {"ANYMPS_PIPELINE_STATISTICS": "1", "MESA_SHADER_CACHE_DISABLE": "true"}
        return env | {"VK_DRIVER_FILES": drivers[0], "VK_ICD_FILENAMES": drivers[0]}


def amd(family):
    # Registers of a lane go to memory. Those of a subgroup (SGPRs) go to lanes of a vector register, which is cheap.
    costs = ("VGPRs", "Spilled SGPRs", "Spilled VGPRs", "Instructions", "Latency", "Inverse Throughput")
    return Compiler(
        driver="radeon",
        name="RADV",
        spills=("Spilled SGPRs",),
        env={"RADV_FORCE_FAMILY": family},
        forbidden="Spilled VGPRs",
        costs=costs,
        gains=("Subgroups per SIMD",),
        launches=("amdgpu", {"AMDGPU_GPU_ID": family}),
    )


def intel(platform):
    env = {"INTEL_STUB_GPU": "1", "INTEL_STUB_GPU_PLATFORM": platform}
    costs = ("Instruction Count", "Cycle Count", "Spill Count", "Fill Count", "Max live registers")
    return Compiler("intel", "Intel", ("Spills", "Spill Count"), env, "intel", costs=costs)


def qualcomm(number):
    costs = ("Instruction Count", "Registers used", "STP Count", "LDP Count")
    env = {"FD_GPU_ID": number}
    gains = ("Max Waves Per Core",)
    return Compiler("freedreno", "Adreno", ("STP Count",), env, "freedreno", costs=costs, gains=gains)


AMD = ("polaris10", "vega10", "navi10", "navi21", "navi31", "gfx1150", "gfx1151")
COMPILERS = {family: amd(family) for family in AMD}
COMPILERS |= {platform: intel(platform) for platform in ("skl", "tgl", "dg2", "bmg")}
COMPILERS |= {f"adreno{number}": qualcomm(number) for number in ("730", "750")}
COMPILERS["m1"] = Compiler("asahi", "Apple", ("Spills",), {}, "asahi")
