"""Kernels of one's own on mps: docs/user_kernels.md explains them. Needs pip install 'torch-anymps[compile]'."""

import torch

ADD = """
[shader("compute")] [numthreads(256, 1, 1)]
void add(uniform float* a, uniform float* b, uniform float* out, uniform float alpha, uniform uint n,
         uint3 id : SV_DispatchThreadID)
{
    if (id.x < n)
        out[id.x] = a[id.x] + alpha * b[id.x];
}
"""


def add(a, b, alpha=1.0):
    """a + alpha * b of contiguous float32 tensors."""
    out = torch.empty_like(a)
    torch.mps.compile_shader(ADD).add(a, b, out, alpha, a.numel())
    return out


ROW_SUMS = """
static const uint kThreads = 128;
groupshared float partial[kThreads];

[shader("compute")] [numthreads(kThreads, 1, 1)]
void row_sums(uniform float* x, uniform float* sums, uniform uint columns, uint3 row : SV_GroupID,
              uint thread : SV_GroupIndex)
{
    float sum = 0;
    for (uint i = thread; i < columns; i += kThreads)
        sum += x[row.x * columns + i];
    partial[thread] = sum;
    GroupMemoryBarrierWithGroupSync();
    for (uint half_of = kThreads / 2; half_of > 0; half_of /= 2)
    {
        if (thread < half_of)
            partial[thread] += partial[thread + half_of];
        GroupMemoryBarrierWithGroupSync();
    }
    if (thread == 0)
        sums[row.x] = partial[0];
}
"""


def row_sums(x):
    """x.sum(1) of a contiguous float32 matrix: a workgroup a row, which adds up in shared memory."""
    sums = torch.empty(len(x), device="mps")
    torch.mps.compile_shader(ROW_SUMS).row_sums(x, sums, x.shape[1], threads=len(x) * 128)
    return sums


METAL = """
#include <metal_stdlib>
using namespace metal;

template <typename T>
kernel void gelu(device const T* x [[buffer(0)]], device T* y [[buffer(1)]], constant float& scale [[buffer(2)]],
                 uint i [[thread_position_in_grid]])
{
    const float v = static_cast<float>(x[i]) * scale;
    y[i] = static_cast<T>(0.5f * v * (1.0f + precise::tanh(0.7978845608f * (v + 0.044715f * v * v * v))));
}

template [[host_name("gelu_float")]] kernel void gelu<float>(device const float*, device float*, constant float&, uint);
template [[host_name("gelu_half")]] kernel void gelu<half>(device const half*, device half*, constant float&, uint);
"""


def gelu(x, scale=1.0):
    """F.gelu(x * scale, approximate="tanh") by a kernel that was written for a Mac."""
    library = torch.mps.compile_shader(METAL)
    kernel = library.gelu_half if x.dtype == torch.float16 else library.gelu_float
    y = torch.empty_like(x)
    kernel(x, y, scale)
    return y


if __name__ == "__main__":
    x, y = torch.randn(1000, 300, device="mps"), torch.randn(1000, 300, device="mps")
    print("add", (add(x, y, 2.0) - (x + 2 * y)).abs().max().item())
    print("row_sums", (row_sums(x) - x.sum(1)).abs().max().item())
    print("gelu", (gelu(x) - torch.nn.functional.gelu(x, approximate="tanh")).abs().max().item())
