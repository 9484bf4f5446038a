// Which address ranges were read and written since the last barrier.
#pragma once

#include <c10/util/SmallVector.h>

#include <cstdint>
#include <span>

namespace anymps::runtime {

// A range of device addresses that a command reads or writes.
struct Access {
    uint64_t address;
    uint64_t bytes;
    bool write;
};

// Not thread-safe; owned by the encoder.
class Hazards {
  public:
    // Notes the accesses of the next command. True when a barrier must come before it: it reads what was
    // written, or writes what was read or written.
    bool add(std::span<const Access> accesses) {
        const bool barrier = pending_.size() + accesses.size() > kMaxPending || conflicts(accesses);
        if (barrier) pending_.clear();
        pending_.append(accesses.begin(), accesses.end());
        return barrier;
    }
    void clear() { pending_.clear(); }

  private:
    // A longer list would cost more to search than the barrier it may save.
    static constexpr size_t kMaxPending = 48;

    bool conflicts(std::span<const Access> accesses) const {
        for (const Access& a : accesses) {
            for (const Access& p : pending_) {
                if ((a.write || p.write) && a.address < p.address + p.bytes &&
                    p.address < a.address + a.bytes) {
                    return true;
                }
            }
        }
        return false;
    }

    c10::SmallVector<Access, kMaxPending> pending_;
};

}  // namespace anymps::runtime
