#include "distributed/schedule.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace anymps::distributed {
namespace {

constexpr size_t kLine = 64;              // chunks and parts of them begin at cache lines
constexpr size_t kChunks = 8;             // that a collective is cut into where it is not large
constexpr size_t kMinChunk = 4ull << 20;  // which take the bus several times as long as a step's round trip

size_t lines(size_t bytes) {
    return bytes / kLine * kLine;
}

// For measurements: ANYMPS_CHUNK_KIB, the same in all ranks.
size_t least_chunk() {
    static const size_t chosen = [] {
        const char* text = std::getenv("ANYMPS_CHUNK_KIB");
        const size_t bytes = text ? std::strtoull(text, nullptr, 10) << 10 : 0;
        return bytes != 0 ? bytes : kMinChunk;
    }();
    return chosen;
}

class Copies final : public Schedule {
  public:
    Copies(int rank, std::vector<Part> give, std::vector<Part> take, bool same, size_t largest)
        : Schedule(largest, same ? SharedSegment::kSlotBytes : lines(SharedSegment::kSlotBytes / give.size()),
                   2, same ? 1 : give.size()),
          rank_(rank),
          give_(std::move(give)),
          take_(std::move(take)),
          same_(same) {}

    void phase(int phase, uint32_t chunk, const Scene& scene) const override {
        phase == 0 ? write(chunk, scene) : read(chunk, scene);
    }

  private:
    void write(uint32_t c, const Scene& scene) const {
        bool written = false;
        for (int peer = 0; peer < scene.ranks; ++peer) {
            const Part& part = give_[peer];
            const size_t bytes = size(c, part.bytes);
            if (bytes == 0 || (peer != rank_ && written && same_)) continue;
            const uint64_t from = scene.address(part, begin(c, part.bytes));
            uint64_t to = scene.slot(rank_) + (same_ ? 0 : peer * chunk_bytes());
            if (peer == rank_) {
                // FSDP's inputs are parts of their outputs.
                to = take_[peer].bytes == 0 ? from : scene.address(take_[peer], begin(c, part.bytes));
            } else {
                written = true;
            }
            if (to != from) scene.executor.copy(to, from, bytes);
        }
    }

    void read(uint32_t c, const Scene& scene) const {
        for (int peer = 0; peer < scene.ranks; ++peer) {
            const Part& part = take_[peer];
            const size_t bytes = size(c, part.bytes);
            if (peer == rank_ || bytes == 0) continue;
            // Who gives all the same writes it to the slot's beginning.
            scene.executor.copy(scene.address(part, begin(c, part.bytes)),
                                scene.slot(peer) + (same_ ? 0 : rank_ * chunk_bytes()), bytes);
        }
    }

    int rank_;
    std::vector<Part> give_, take_;
    bool same_;
};

class ReduceScatter final : public Schedule {
  public:
    ReduceScatter(int rank, std::vector<Part> give, Part out, c10::ScalarType dtype,
                  c10d::ReduceOp::RedOpType op)
        : Schedule(largest(give), lines(SharedSegment::kSlotBytes / give.size()), 2, give.size()),
          rank_(rank),
          give_(std::move(give)),
          out_(out),
          dtype_(dtype),
          op_(op) {}

    void phase(int phase, uint32_t chunk, const Scene& scene) const override {
        phase == 0 ? write(chunk, scene) : reduce(chunk, scene);
    }

  private:
    void write(uint32_t c, const Scene& scene) const {
        for (int peer = 0; peer < scene.ranks; ++peer) {
            const size_t bytes = size(c, give_[peer].bytes);
            if (peer == rank_ || bytes == 0) continue;
            scene.executor.copy(scene.slot(rank_) + peer * chunk_bytes(),
                                scene.address(give_[peer], begin(c, give_[peer].bytes)), bytes);
        }
    }

    void reduce(uint32_t c, const Scene& scene) const {
        const Part& own = give_[rank_];
        if (size(c, own.bytes) == 0) return;
        scene.executor.reduce({.dtype = dtype_,
                               .op = op_,
                               .out = scene.address(out_, begin(c, own.bytes)),
                               .own = scene.address(own, begin(c, own.bytes)),
                               .parts = scene.slot_offset + rank_ * chunk_bytes(),
                               .bytes = size(c, own.bytes)});
    }

    static size_t largest(const std::vector<Part>& parts) {
        size_t most = 0;
        for (const Part& part : parts) most = std::max(most, part.bytes);
        return most;
    }

    int rank_;
    std::vector<Part> give_;
    Part out_;
    c10::ScalarType dtype_;
    c10d::ReduceOp::RedOpType op_;
};

// Each rank reduces one part of every chunk, and takes the others' parts from where they have put theirs: the
// second half of their slots.
class AllReduce final : public Schedule {
  public:
    AllReduce(int ranks, Part data, c10::ScalarType dtype, c10d::ReduceOp::RedOpType op)
        : Schedule(data.bytes, room(ranks), 3), data_(data), dtype_(dtype), op_(op) {}

    void phase(int phase, uint32_t chunk, const Scene& scene) const override {
        if (phase == 0) return write(chunk, scene);
        phase == 1 ? reduce(chunk, scene) : read(chunk, scene);
    }

  private:
    // For what a rank gives. What it has reduced needs a part of it, and a line.
    static size_t room(int ranks) {
        return lines((SharedSegment::kSlotBytes - (ranks + 1) * kLine) / (ranks + 1) * ranks);
    }
    // Of a chunk, where the part of a rank begins.
    static size_t part(size_t bytes, int rank, int ranks) {
        return rank == ranks ? bytes : lines(bytes * rank / ranks);
    }

    void write(uint32_t c, const Scene& scene) const {
        const size_t bytes = size(c, data_.bytes);
        const size_t ends[] = {0, part(bytes, scene.rank, scene.ranks),
                               part(bytes, scene.rank + 1, scene.ranks), bytes};
        for (const int piece : {0, 2}) {
            const size_t from = ends[piece], count = ends[piece + 1] - from;
            if (count == 0) continue;
            scene.executor.copy(scene.slot(scene.rank) + from,
                                scene.address(data_, begin(c, data_.bytes) + from), count);
        }
    }

    void reduce(uint32_t c, const Scene& scene) const {
        const size_t bytes = size(c, data_.bytes), from = part(bytes, scene.rank, scene.ranks),
                     count = part(bytes, scene.rank + 1, scene.ranks) - from;
        if (count == 0) return;
        const uint64_t own = scene.address(data_, begin(c, data_.bytes) + from);
        scene.executor.reduce({.dtype = dtype_,
                               .op = op_,
                               .out = own,
                               .also = scene.slot(scene.rank) + room(scene.ranks),
                               .own = own,
                               .parts = scene.slot_offset + from,
                               .bytes = count});
    }

    void read(uint32_t c, const Scene& scene) const {
        const size_t bytes = size(c, data_.bytes);
        for (int peer = 0; peer < scene.ranks; ++peer) {
            const size_t from = part(bytes, peer, scene.ranks),
                         count = part(bytes, peer + 1, scene.ranks) - from;
            if (peer == scene.rank || count == 0) continue;
            scene.executor.copy(scene.address(data_, begin(c, data_.bytes) + from),
                                scene.slot(peer) + room(scene.ranks), count);
        }
    }

    Part data_;
    c10::ScalarType dtype_;
    c10d::ReduceOp::RedOpType op_;
};

// Every rank reduces all for itself.
class SmallAllReduce final : public Schedule {
  public:
    SmallAllReduce(Part data, c10::ScalarType dtype, c10d::ReduceOp::RedOpType op)
        : Schedule(data.bytes, SharedSegment::kSlotBytes, 2), data_(data), dtype_(dtype), op_(op) {}

    void phase(int phase, uint32_t, const Scene& scene) const override {
        if (phase == 0) return scene.executor.copy(scene.slot(scene.rank), scene.address(data_), data_.bytes);
        scene.executor.reduce({.dtype = dtype_,
                               .op = op_,
                               .out = scene.address(data_),
                               .own = scene.address(data_),
                               .parts = scene.slot_offset,
                               .bytes = data_.bytes});
    }

  private:
    Part data_;
    c10::ScalarType dtype_;
    c10d::ReduceOp::RedOpType op_;
};

class Rendezvous final : public Schedule {
  public:
    Rendezvous() : Schedule(1, SharedSegment::kSlotBytes, 2) {}
    void phase(int, uint32_t, const Scene&) const override {}
};

}  // namespace

Schedule::Schedule(size_t bytes, size_t room, int phases, size_t copies) : phases_(phases) {
    const size_t share = lines(bytes / kChunks) + kLine;
    chunk_bytes_ = std::clamp(share, std::min(least_chunk(), room), room);
    if (bytes * copies <= SharedSegment::kSmallSlotBytes) chunk_bytes_ = lines(bytes + kLine - 1);
    chunks_ = bytes == 0 ? 0 : static_cast<uint32_t>((bytes + chunk_bytes_ - 1) / chunk_bytes_);
    needed_ = chunk_bytes_ * copies;
}

SchedulePtr copies(int rank, std::vector<Part> give, std::vector<Part> take, bool same, size_t largest) {
    return std::make_unique<Copies>(rank, std::move(give), std::move(take), same, largest);
}

SchedulePtr reduce_scatter(int rank, std::vector<Part> give, Part out, c10::ScalarType dtype,
                           c10d::ReduceOp::RedOpType op) {
    return std::make_unique<ReduceScatter>(rank, std::move(give), out, dtype, op);
}

SchedulePtr all_reduce(int ranks, Part data, c10::ScalarType dtype, c10d::ReduceOp::RedOpType op) {
    if (data.bytes > SharedSegment::kSmallSlotBytes)
        return std::make_unique<AllReduce>(ranks, data, dtype, op);
    return std::make_unique<SmallAllReduce>(data, dtype, op);
}

SchedulePtr rendezvous() {
    return std::make_unique<Rendezvous>();
}

}  // namespace anymps::distributed
