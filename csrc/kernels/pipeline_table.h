// The pipelines of one kernel by their specialization constants: read without a lock, without allocating.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "vulkan/pipeline.h"

namespace anymps::kernels {

// Entries are only ever added. Readers see a whole entry or none: slots and tables are published by release
// stores. Tables that were outgrown stay until the end, since a reader may be in one (at most the size of the
// last one).
class PipelineTable {
  public:
    using Create = std::function<std::unique_ptr<vulkan::Pipeline>()>;

    // nullptr when there is none yet.
    const vulkan::Pipeline* find(std::span<const uint32_t> specialization) const;

    // Creates the pipeline unless another thread has just done so. An exception of `create` leaves the table
    // as it was; the next caller tries again.
    const vulkan::Pipeline& find_or_create(std::span<const uint32_t> specialization, const Create& create);

    size_t size() const {
        const std::lock_guard lock(mutex_);
        return entries_.size();
    }

  private:
    struct Entry {
        std::vector<uint32_t> specialization;
        std::unique_ptr<vulkan::Pipeline> pipeline;
    };
    struct Slots {
        explicit Slots(size_t count) : mask(count - 1), slots(count) {}
        void insert(const Entry* entry);
        size_t mask;  // slot count - 1, a power of two less one
        std::vector<std::atomic<const Entry*>> slots;
    };

    std::atomic<const Slots*> current_{nullptr};
    mutable std::mutex mutex_;  // guards what follows
    std::vector<std::unique_ptr<Slots>> tables_;
    std::vector<std::unique_ptr<Entry>> entries_;
};

// Pipelines in all tables of the kernel library: what this process has built.
size_t pipeline_count();

}  // namespace anymps::kernels
