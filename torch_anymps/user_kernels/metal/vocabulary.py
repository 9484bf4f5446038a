"""Words of Metal and what they are in Slang; what shaders/lib/metal.slang defines has the same name in both."""

from __future__ import annotations

import re

_SCALARS = {
    "char": "int8_t",
    "uchar": "uint8_t",
    "short": "int16_t",
    "ushort": "uint16_t",
    "long": "int64_t",
    "ulong": "uint64_t",
}
# Scalars of memory, by their names in Slang: the kinds of torch_anymps/user_kernels/arguments.py, bytes.
KINDS = {
    "float": ("fp32", 4),
    "half": ("fp16", 2),
    "bfloat": ("bf16", 2),
    "int": ("int32", 4),
    "uint": ("uint32", 4),
    "int8_t": ("int8", 1),
    "uint8_t": ("uint8", 1),
    "int16_t": ("int16", 2),
    "uint16_t": ("uint16", 2),
    "int64_t": ("int64", 8),
    "uint64_t": ("uint64", 8),
    "bool": ("uint8", 1),
}
TYPES = {
    **_SCALARS,
    **{f"{metal}{n}": f"{slang}{n}" for metal, slang in _SCALARS.items() for n in (2, 3, 4)},
    "size_t": "uint64_t",
    "ptrdiff_t": "int64_t",
    "uint32_t": "uint",
    "int32_t": "int",
    "float32_t": "float",
    "float16_t": "half",
    "bfloat16_t": "bfloat",
    "packed_float2": "float2",
    "packed_float3": "float3",
    "packed_float4": "float4",
    "atomic_int": "int",
    "atomic_uint": "uint",
    "atomic_float": "float",
    "atomic_bool": "bool",
}
SCALAR_TYPES = frozenset(KINDS)
MATRIX_TYPES = frozenset(f"metal_{t}{c}x{r}" for t in ("float", "half") for c in (2, 3, 4) for r in (2, 3, 4))
TYPES.update({name.removeprefix("metal_"): name for name in MATRIX_TYPES})
STRUCT_TYPES = frozenset({"bfloat2", "bfloat4"})  # of shaders/lib/metal.slang
VECTOR_TYPES = frozenset(
    f"{name}{n}"
    for name in (
        "float",
        "half",
        "int",
        "uint",
        "bool",
        "int8_t",
        "uint8_t",
        "int16_t",
        "uint16_t",
        "int64_t",
        "uint64_t",
    )
    for n in (2, 3, 4)
)

# Functions whose name means something else in Slang, or nothing.
FUNCTIONS = {
    "select": "metal_select",
    "mix": "lerp",
    "fract": "frac",
    "round": "metal_round",
    "popcount": "countbits",
    "reverse_bits": "reversebits",
    "pow": "metal_pow",
    "powr": "metal_pow",
    "fmod": "metal_fmod",
    "fmax": "metal_fmax",
    "fmin": "metal_fmin",
    "isnan": "metal_isnan",
    "isinf": "metal_isinf",
    "isfinite": "metal_isfinite",
    "min3": "metal_min3",
    "max3": "metal_max3",
    "mulhi": "metal_mulhi",
    "length_squared": "metal_length_squared",
}
CONSTANTS = {
    "INFINITY": "bit_cast<float>(0x7f800000)",
    "HUGE_VALF": "bit_cast<float>(0x7f800000)",
    "NAN": "bit_cast<float>(0x7fc00000)",
    "FLT_MAX": "3.402823466e+38f",
    "FLT_MIN": "1.175494351e-38f",
    "FLT_EPSILON": "1.192092896e-07f",
    "HALF_MAX": "half(65504.0f)",
    "MAXFLOAT": "3.402823466e+38f",
    "INT_MAX": "0x7fffffff",
    "INT_MIN": "(-0x7fffffff - 1)",
    "UINT_MAX": "0xffffffffu",
    "M_PI_F": "3.14159265358979f",
    "M_PI_2_F": "1.57079632679490f",
    "M_PI_4_F": "0.785398163397448f",
    "M_1_PI_F": "0.318309886183791f",
    "M_2_PI_F": "0.636619772367581f",
    "M_2_SQRTPI_F": "1.12837916709551f",
    "M_SQRT2_F": "1.41421356237310f",
    "M_SQRT1_2_F": "0.707106781186548f",
    "M_E_F": "2.71828182845905f",
    "M_LN2_F": "0.693147180559945f",
    "M_LN10_F": "2.30258509299405f",
    "M_LOG2E_F": "1.44269504088896f",
    "M_LOG10E_F": "0.434294481903252f",
}
_SMALLEST = {"float": "(-3.402823466e+38f)", "half": "half(-65504.0f)", "bfloat": "bfloat(-3.389531e+38f)"}
# numeric_limits<type>::name(); the others of integers are computed.
LIMITS = {
    ("float", "max"): "3.402823466e+38f",
    ("half", "max"): "half(65504.0f)",
    ("bfloat", "max"): "bfloat(3.389531e+38f)",
    ("float", "min"): "1.175494351e-38f",
    ("float", "epsilon"): "1.192092896e-07f",
    **{(name, "lowest"): text for name, text in _SMALLEST.items()},
    **{(name, "infinity"): f"{name}(bit_cast<float>(0x7f800000))" for name in _SMALLEST},
    **{(name, "quiet_NaN"): f"{name}(bit_cast<float>(0x7fc00000))" for name in _SMALLEST},
}


def limit(type_name: str, name: str) -> str | None:
    """numeric_limits<type_name>::name() as an expression of Slang, None where it is not known."""
    found = LIMITS.get((type_name, name))
    if found or type_name not in KINDS or KINDS[type_name][0][0] in "fb":
        return found
    kind, size = KINDS[type_name]
    bits = 8 * size
    low, high = (0, (1 << bits) - 1) if kind[0] == "u" else (-(1 << bits - 1), (1 << bits - 1) - 1)
    value = {"max": high, "min": low, "lowest": low}.get(name)
    if value is None:
        return None
    suffix = "ull" if kind == "uint64" else "ll" if size == 8 else "u" if kind == "uint32" else ""
    return f"{type_name}({value}{suffix})" if value >= 0 else f"({type_name}({value + 1}{suffix}) - {type_name}(1))"


# Of a kernel's parameter, as an expression of uint or uint3.
ATTRIBUTES = {
    "thread_position_in_grid": "position_in_grid_",
    "threads_per_grid": "launch_.threads",
    "grid_size": "launch_.threads",
    "thread_position_in_threadgroup": "thread_",
    "threadgroup_position_in_grid": "(launch_.first_group + group_)",
    "threadgroups_per_grid": "((launch_.threads + launch_.group - 1) / launch_.group)",
    "threads_per_threadgroup": "launch_.group_here",
    "dispatch_threads_per_threadgroup": "launch_.group",
    "grid_origin": "uint3(0)",
}
SCALAR_ATTRIBUTES = {
    "thread_index_in_threadgroup": "index_",
    "thread_index_in_simdgroup": "simd_lane()",
    "simdgroup_index_in_threadgroup": "simd_group()",
    "threads_per_simdgroup": "32u",
    "thread_execution_width": "32u",
    "simdgroups_per_threadgroup": "simd_groups()",
    "dispatch_simdgroups_per_threadgroup": "simd_groups()",
}

# A name of Metal source that is a word of Slang gets an underscore.
KEYWORDS = frozenset(
    re.findall(
        r"\w+",
        """in out inout input output this vector matrix let var func property extension interface each where is as
        import module buffer texture sample point line triangle shared uniform export groupshared precise row_major
        column_major cbuffer tbuffer no_diff defer throws throw try catch expand associatedtype typealias implementing
        public internal private get set newValue functype some This none Optional Ptr Atomic nointerpolation centroid
        layout require countof lerp frac assert spirv_asm stage discard pixel vertex fragment override""",
    )
)

# What the subset lacks, by a word that gives it away.
REFUSED = {
    "texture1d": "textures",
    "texture2d": "textures",
    "texture3d": "textures",
    "texture2d_array": "textures",
    "texture_buffer": "textures",
    "sampler": "samplers",
    "simdgroup_matrix": "simdgroup_matrix",
    "simdgroup_float8x8": "simdgroup_matrix",
    "simdgroup_half8x8": "simdgroup_matrix",
    "simdgroup_bfloat8x8": "simdgroup_matrix",
    "simdgroup_load": "simdgroup_matrix",
    "simdgroup_multiply_accumulate": "simdgroup_matrix",
    "function_constant": "function constants",
    "visible_function_table": "function tables",
    "command_buffer": "command buffers",
    "imageblock": "imageblocks",
    "vertex_id": "vertex functions",
    "class": "classes",
    "virtual": "virtual functions",
    "operator": "operators of its own",
    "goto": "goto",
    "asm": "asm",
    "decltype": "decltype",
    "requires": "requires",
    "concept": "concepts",
    "union": "unions",
    "packed_half2": "packed_half2",
    "packed_half4": "packed_half4",
    "bfloat3": "bfloat3",
    "simd_shuffle_rotate_down": "simd_shuffle_rotate_down",
    "simd_shuffle_rotate_up": "simd_shuffle_rotate_up",
    "simd_shuffle_and_fill_down": "simd_shuffle_and_fill_down",
    "simd_shuffle_and_fill_up": "simd_shuffle_and_fill_up",
    "simd_active_threads_mask": "simd_active_threads_mask",
    "quad_sum": "quad functions",
    "quad_shuffle": "quad functions",
    "quad_broadcast": "quad functions",
    "quad_shuffle_xor": "quad functions",
    "tensor": "tensors",
    "frexp": "frexp",
    "modf": "modf",
    "sincos": "sincos",
}
REFUSED_TEMPLATES = frozenset({"tensor", "texture_buffer", "imageblock", "sampler"})
# Functions whose threads wait for one another, or exchange values: all of a threadgroup must be there.
BARRIERS = frozenset({"threadgroup_barrier", "simdgroup_barrier"})
EXCHANGES = frozenset(
    re.findall(
        r"\w+",
        """simd_sum simd_product simd_max simd_min simd_and simd_or simd_xor simd_any simd_all simd_ballot
        simd_broadcast simd_broadcast_first simd_shuffle simd_shuffle_down simd_shuffle_up simd_shuffle_xor
        simd_prefix_inclusive_sum simd_prefix_exclusive_sum simd_is_first simd_argmax simd_argmin simd_prod""",
    )
)
ATOMICS = {
    "atomic_fetch_add_explicit": "atomic_fetch_add",
    "atomic_fetch_sub_explicit": "atomic_fetch_sub",
    "atomic_fetch_min_explicit": "atomic_fetch_min",
    "atomic_fetch_max_explicit": "atomic_fetch_max",
    "atomic_fetch_and_explicit": "atomic_fetch_and",
    "atomic_fetch_or_explicit": "atomic_fetch_or",
    "atomic_fetch_xor_explicit": "atomic_fetch_xor",
    "atomic_exchange_explicit": "atomic_exchange",
    "atomic_load_explicit": "atomic_load",
    "atomic_store_explicit": "atomic_store",
}
# Those without a twin here; headers of Metal itself need none.
HEADERS = {
    "metal_stdlib": None,
    "metal_math": None,
    "metal_atomic": None,
    "metal_simdgroup": None,
    "metal_compute": None,
    "metal_integer": None,
    "metal_common": None,
    "metal_array": None,
    "metal_limits": None,
    "metal_numeric": None,
    "metal_types": None,
    "metal_geometric": None,
    "metal_relational": None,
    "metal_pack": None,
    "c10/metal/common.h": None,
    "c10/metal/utils.h": "lib.metal_c10",
    "c10/metal/special_math.h": "lib.metal_c10",
    "c10/metal/random.h": "lib.metal_c10",
    "c10/metal/reduction_utils.h": "lib.metal_c10",
    "c10/metal/atomic.h": "lib.metal_c10",
    "c10/metal/error.h": "lib.metal_c10",
    "c10/metal/expm1f.h": "lib.metal_c10",
    "c10/metal/igamma.h": "lib.metal_c10",
}
