// Tensors of random numbers. Checks and their texts come from ATen's templates; the numbers from Philox, in
// the order of memory, so that one seed gives one tensor on every device.
#include <anymps/ops/random/random_ops.h>
#include <anymps/shaders/random/random.h>

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/scalar_tensor.h>

#include <ATen/native/DistributionTemplates.h>

#include <cmath>

#include "kernels/check_dtype.h"
#include "kernels/flat_grid.h"
#include "ops/same_device.h"
#include "runtime/generator.h"

namespace anymps::ops {
namespace {

using kernels::Grid;
namespace shader = shaders::random;
using runtime::PhiloxState;

constexpr uint32_t kWorkgroup = 128;

Grid grid_of(uint64_t threads) {
    return kernels::flat_grid(threads, kWorkgroup);
}

uint64_t blocks_of(uint64_t count, uint64_t per_block) {
    return (count + per_block - 1) / per_block;
}

bool aligned(const at::TensorBase& tensor) {
    return kernels::address(tensor) % (4 * tensor.element_size()) == 0;
}

// Calls draw with a dense tensor of self's shape: self, or a temporary that is copied into it.
template <class Draw>
void draw_into(const at::TensorBase& self, Draw draw) {
    runtime::check_drawn_device(self);
    if (self.is_non_overlapping_and_dense()) {
        draw(self);
        return;
    }
    const Tensor dense = at::empty_like(Tensor(self), at::MemoryFormat::Contiguous);
    draw(dense);
    Tensor(self).copy_(dense);
}

void draw_floats(const shader::DrawF32Kernel& kernel, const at::TensorBase& self,
                 shader::Parameters parameters, const std::optional<Generator>& generator) {
    draw_into(self, [&](const at::TensorBase& out) {
        const auto count = static_cast<uint64_t>(out.numel());
        const PhiloxState random = runtime::reserve_philox(generator, count);
        kernel
            .call(
                {.workgroup = kWorkgroup, .type = kernels::code(out.scalar_type()), .aligned = aligned(out)})
            .write(out)
            .dispatch({.out = kernels::address(out), .random = random, .count = count, .p = parameters},
                      grid_of(blocks_of(count, 4 * shader::kBlocks)));
    });
}

// Integers of [base, base + range); range 0 stands for 2^64.
void draw_integers(const at::TensorBase& self, uint64_t range, int64_t base,
                   const std::optional<Generator>& generator) {
    // Numbers of 2^20 values take 32 random bits each, of 2^32 values 64, others 128.
    const bool small = range != 0 && range <= uint64_t{1} << 20;
    const bool narrow = range != 0 && range <= uint64_t{1} << 32;
    draw_into(self, [&](const at::TensorBase& out) {
        const auto count = static_cast<uint64_t>(out.numel());
        const uint64_t blocks = blocks_of(count, small ? 4 : narrow ? 2 : 1);
        const PhiloxState random = runtime::reserve_philox(generator, blocks * runtime::kNumbersPerBlock);
        (small    ? shader::random_integer_small
         : narrow ? shader::random_integer
                  : shader::random_integer_wide)
            .call(
                {.workgroup = kWorkgroup, .type = kernels::code(out.scalar_type()), .aligned = aligned(out)})
            .write(out)
            .dispatch({.out = kernels::address(out),
                       .random = random,
                       .count = count,
                       .base = base,
                       .range = range},
                      grid_of(blocks));
    });
}

// The range of random_() without bounds: every number that the dtype holds without a gap, from 0.
uint64_t natural_range(ScalarType type) {
    switch (type) {
        case at::kBool:
            return 2;
        case at::kByte:
            return uint64_t{1} << 8;
        case at::kChar:
            return uint64_t{1} << 7;
        case at::kShort:
            return uint64_t{1} << 15;
        case at::kInt:
            return uint64_t{1} << 31;
        case at::kLong:
            return uint64_t{1} << 63;
        case at::kUInt16:
            return uint64_t{1} << 16;
        case at::kUInt32:
            return uint64_t{1} << 32;
        case at::kUInt64:
            return 0;
        case at::kHalf:
            return (uint64_t{1} << 11) + 1;
        case at::kBFloat16:
            return (uint64_t{1} << 8) + 1;
        case at::kFloat:
            return (uint64_t{1} << 24) + 1;
        default:
            kernels::raise_not_implemented(type, "random_kernel_cpu");
    }
}

// What ATen's templates call after their checks. The second parameter of theirs, the generator's class, has
// no use here.
template <class>
struct UniformKernel {
    void operator()(at::TensorIteratorBase& iter, double from, double to,
                    const std::optional<Generator>& generator) {
        // The kernel rounds to the dtype before it compares, so the end must be a number of the dtype too.
        const double end = at::scalar_tensor(to, iter.dtype()).item<double>();
        draw_floats(shader::random_uniform, iter.tensor_base(0),
                    {static_cast<float>(from), static_cast<float>(to - from), static_cast<float>(end)},
                    generator);
    }
};

template <class>
struct NormalKernel {
    void operator()(const Tensor& self, double mean, double std, const std::optional<Generator>& generator) {
        kernels::check_floating(self.scalar_type(), "normal_kernel_cpu");
        draw_floats(shader::random_normal, self, {static_cast<float>(mean), static_cast<float>(std)},
                    generator);
    }
};

template <class>
struct LogNormalKernel {
    void operator()(at::TensorIteratorBase& iter, double mean, double std,
                    const std::optional<Generator>& generator) {
        kernels::check_floating(iter.dtype(), "log_normal_cpu");
        draw_floats(shader::random_log_normal, iter.tensor_base(0),
                    {static_cast<float>(mean), static_cast<float>(std)}, generator);
    }
};

template <class>
struct ExponentialKernel {
    void operator()(at::TensorIteratorBase& iter, double lambda, const std::optional<Generator>& generator) {
        TORCH_CHECK(at::isFloatingType(iter.dtype()),
                    "Exponential distribution is a continuous probability distribution. dtype must be a "
                    "floating point but you specified ",
                    iter.dtype());
        draw_floats(shader::random_exponential, iter.tensor_base(0), {0, static_cast<float>(1 / lambda)},
                    generator);
    }
};

template <class>
struct CauchyKernel {
    void operator()(at::TensorIteratorBase& iter, double median, double sigma,
                    const std::optional<Generator>& generator) {
        draw_floats(shader::random_cauchy, iter.tensor_base(0),
                    {static_cast<float>(median), static_cast<float>(sigma)}, generator);
    }
};

template <class>
struct GeometricKernel {
    void operator()(at::TensorIteratorBase& iter, double p, const std::optional<Generator>& generator) {
        kernels::check_real(iter.dtype(), "geometric_cpu");
        kernels::check_implemented(iter.dtype() != at::kBool, iter.dtype(), "geometric_cpu");
        draw_floats(shader::random_geometric, iter.tensor_base(0),
                    {0, static_cast<float>(1 / std::log1p(-p))}, generator);
    }
};

template <class>
struct BernoulliKernel {
    void operator()(const Tensor& self, double p, const std::optional<Generator>& generator) {
        kernels::check_real(self.scalar_type(), "bernoulli_scalar_cpu_");
        draw_floats(shader::random_bernoulli, self, {static_cast<float>(p)}, generator);
    }
    void operator()(const Tensor& self, const Tensor& p, const std::optional<Generator>& generator) {
        kernels::check_real(self.scalar_type(), "bernoulli_tensor_cpu_self_");
        kernels::check_real(p.scalar_type(), "bernoulli_tensor_cpu_p_");
        draw_into(self, [&](const at::TensorBase& out) {
            // The kernel walks both tensors in the order of memory.
            Tensor probabilities = p.to(out.device()).expand(out.sizes());
            if (probabilities.strides() != out.strides()) {
                probabilities = at::empty_strided(out.sizes(), out.strides(), probabilities.options())
                                    .copy_(probabilities);
            }
            const auto count = static_cast<uint64_t>(out.numel());
            const PhiloxState random = runtime::reserve_philox(generator, count);
            const auto error = runtime::encoder().message_slot("Expected p_in >= 0 && p_in <= 1 to be true");
            shader::random_bernoulli_tensor
                .call({.workgroup = kWorkgroup,
                       .type = kernels::code(out.scalar_type()),
                       .aligned = aligned(out) && aligned(probabilities),
                       .other_type = kernels::code(probabilities.scalar_type())})
                .read(probabilities)
                .write(out)
                .dispatch({.out = kernels::address(out),
                           .random = random,
                           .count = count,
                           .probabilities = kernels::address(probabilities),
                           .error = error.address,
                           .error_code = error.code},
                          grid_of(blocks_of(count, 4)));
        });
    }
};

template <class>
struct RandomKernel {
    void operator()(at::TensorIteratorBase& iter, const std::optional<Generator>& generator) {
        draw_integers(iter.tensor_base(0), natural_range(iter.dtype()), 0, generator);
    }
};

template <class>
struct RandomFromToKernel {
    void operator()(at::TensorIteratorBase& iter, uint64_t range, int64_t from,
                    const std::optional<Generator>& generator) {
        draw_integers(iter.tensor_base(0), range, from, generator);
    }
    // The whole range of int64.
    void operator()(at::TensorIteratorBase& iter, const std::optional<Generator>& generator) {
        const ScalarType type = iter.dtype();
        kernels::check_implemented(type != at::kBool && type != at::kHalf, iter.dtype(),
                                   "random_full_64_bits_range_kernel_cpu");
        TORCH_CHECK(type == at::kLong || type == at::kFloat || type == at::kBFloat16,
                    "random_full_64_bits_range_kernel_cpu handles only int64, double, float and bfloat16");
        draw_integers(iter.tensor_base(0), 0, std::numeric_limits<int64_t>::lowest(), generator);
    }
};

namespace templates = at::native::templates;
using Philox = runtime::MPSGeneratorImpl;

}  // namespace

ANYMPS_ROW(uniform_, templates::uniform_impl_<UniformKernel, Philox>(self, from, to, std::move(generator)))
ANYMPS_ROW(normal_, templates::normal_impl_<NormalKernel, Philox>(self, mean, std, std::move(generator)))
ANYMPS_ROW(normal_Tensor_float_out,
           templates::normal_out_impl<NormalKernel, Philox>(out, mean, std, std::move(generator)))
ANYMPS_ROW(normal_float_Tensor_out,
           templates::normal_out_impl<NormalKernel, Philox>(out, mean, std, std::move(generator)))
ANYMPS_ROW(normal_Tensor_Tensor_out,
           templates::normal_out_impl<NormalKernel, Philox>(out, mean, std, std::move(generator)))

ANYMPS_ROW(normal_Tensor_float, templates::normal_impl<NormalKernel, Philox>(mean, std, std::move(generator)))
ANYMPS_ROW(normal_float_Tensor, templates::normal_impl<NormalKernel, Philox>(mean, std, std::move(generator)))
ANYMPS_ROW(normal_Tensor_Tensor,
           templates::normal_impl<NormalKernel, Philox>(mean, std, std::move(generator)))

ANYMPS_ROW(log_normal_,
           templates::log_normal_impl_<LogNormalKernel, Philox>(self, mean, std, std::move(generator)))
ANYMPS_ROW(exponential_,
           templates::exponential_impl_<ExponentialKernel, Philox>(self, lambd, std::move(generator)))
ANYMPS_ROW(cauchy_, templates::cauchy_impl_<CauchyKernel, Philox>(self, median, sigma, std::move(generator)))
ANYMPS_ROW(geometric_, templates::geometric_impl_<GeometricKernel, Philox>(self, p, std::move(generator)))
ANYMPS_ROW(bernoulli__float,
           templates::bernoulli_impl_<BernoulliKernel, Philox>(self, p, std::move(generator)))
ANYMPS_ROW(bernoulli__Tensor,
           templates::bernoulli_impl_<BernoulliKernel, Philox>(self, p, std::move(generator)))

Tensor& ANYMPS_FUNC(bernoulli_out)(const Tensor& self, std::optional<Generator> generator, Tensor& out) {
    check_same_device("bernoulli", {{"self", self}, {"out", out}});
    return templates::bernoulli_out_impl<BernoulliKernel, Philox>(out, self, std::move(generator));
}

ANYMPS_ROW(random_, templates::random_impl<RandomKernel, Philox>(self, std::move(generator)))
ANYMPS_ROW(random__from,
           templates::random_from_to_impl<RandomFromToKernel, Philox>(self, from, to, std::move(generator)))

ANYMPS_ROW(random__to,
           templates::random_from_to_impl<RandomFromToKernel, Philox>(self, 0, to, std::move(generator)))

}  // namespace anymps::ops
