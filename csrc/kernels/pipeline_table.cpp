#include "kernels/pipeline_table.h"

#include <algorithm>

namespace anymps::kernels {

namespace {

size_t hash(std::span<const uint32_t> words) {
    uint64_t value = words.size();
    for (const uint32_t word : words) {
        value = (value ^ word) * 0x9e3779b97f4a7c15ull;
        value ^= value >> 29;
    }
    return value ^ (value >> 32);
}

}  // namespace

void PipelineTable::Slots::insert(const Entry* entry) {
    size_t at = hash(entry->specialization) & mask;
    while (slots[at].load(std::memory_order_relaxed) != nullptr) at = (at + 1) & mask;
    slots[at].store(entry, std::memory_order_release);
}

const vulkan::Pipeline* PipelineTable::find(std::span<const uint32_t> specialization) const {
    const Slots* table = current_.load(std::memory_order_acquire);
    if (table == nullptr) return nullptr;
    for (size_t at = hash(specialization) & table->mask;; at = (at + 1) & table->mask) {
        const Entry* entry = table->slots[at].load(std::memory_order_acquire);
        if (entry == nullptr) return nullptr;
        if (std::ranges::equal(entry->specialization, specialization)) return entry->pipeline.get();
    }
}

const vulkan::Pipeline& PipelineTable::find_or_create(std::span<const uint32_t> specialization,
                                                      const Create& create) {
    const std::lock_guard lock(mutex_);
    if (const auto* pipeline = find(specialization)) return *pipeline;
    auto entry = std::make_unique<Entry>();
    entry->specialization.assign(specialization.begin(), specialization.end());
    entry->pipeline = create();
    entries_.push_back(std::move(entry));
    // At most half of the slots are used, so that a search always meets an empty one.
    if (tables_.empty() || 2 * entries_.size() > tables_.back()->slots.size()) {
        auto larger = std::make_unique<Slots>(tables_.empty() ? 4 : 2 * tables_.back()->slots.size());
        for (const auto& known : entries_) larger->insert(known.get());
        tables_.push_back(std::move(larger));
        current_.store(tables_.back().get(), std::memory_order_release);
    } else {
        tables_.back()->insert(entries_.back().get());
    }
    return *entries_.back()->pipeline;
}

}  // namespace anymps::kernels
