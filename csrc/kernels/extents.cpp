#include "kernels/extents.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace anymps::kernels {

bool Extent::continues(const Extent& inner) const {
    for (size_t k = 0; k < kMaxSlots; ++k) {
        if (stride[k] != inner.stride[k] * inner.size) return false;
    }
    return true;
}

void collapse(Extents& extents, bool keep_order) {
    const auto key = [](const Extent& e) {
        return e.stride[0] == 0 ? std::numeric_limits<int64_t>::max() : e.stride[0];
    };
    if (!keep_order) {
        std::stable_sort(extents.begin(), extents.end(),
                         [&](const Extent& a, const Extent& b) { return key(a) < key(b); });
    }
    size_t count = 0;
    for (const Extent& next : extents) {
        if (count > 0 && next.continues(extents[count - 1]))
            extents[count - 1].size *= next.size;
        else
            extents[count++] = next;
    }
    extents.resize(count);
}

char* write_dims(const Extents& extents, char* out) {
    for (const Extent& e : extents) {
        Dim dim;
        dim.size = FastDivider(static_cast<uint32_t>(e.size));
        dim.size.divisor = static_cast<uint32_t>(e.size);  // the lower half of a long one may be 0
        dim.size_high = static_cast<uint32_t>(static_cast<uint64_t>(e.size) >> 32);
        dim.stride = e.stride;
        std::memcpy(out, &dim, sizeof(Dim));
        out += sizeof(Dim);
    }
    return out;
}

bool vector_aligned(uint64_t address, int64_t item, size_t k, const Extents& along, const Extents& others) {
    const int64_t alignment = std::min<int64_t>(16, 4 * item);
    const auto aligned = [&](const Extent& e) { return e.stride[k] % alignment == 0; };
    return along[0].stride[k] == item && address % static_cast<uint64_t>(alignment) == 0 &&
           std::all_of(along.begin() + 1, along.end(), aligned) &&
           std::all_of(others.begin(), others.end(), aligned);
}

}  // namespace anymps::kernels
