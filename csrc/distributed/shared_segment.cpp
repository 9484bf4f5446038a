#include "distributed/shared_segment.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace anymps::distributed {
namespace {

constexpr const char* kName = "anymps_collectives";
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

[[noreturn]] void fail(const char* what) {
    throw std::system_error(errno, std::generic_category(), what);
}

template <class T>
T checked(T result, const char* what) {
    if (result < 0) fail(what);
    return result;
}

// Across processes: without FUTEX_PRIVATE_FLAG.
long futex(std::atomic<uint32_t>* word, int operation, uint32_t value, const timespec* timeout) {
    return syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), operation, value, timeout, nullptr, 0);
}

bool reached(const std::atomic<uint32_t>& counter, uint32_t count) {
    return static_cast<int32_t>(counter.load(std::memory_order_acquire) - count) >= 0;  // counters wrap
}

}  // namespace

struct SharedSegment::Header {
    uint64_t token[2];
    // What peers read and what they write, on cache lines of their own.
    alignas(64) std::atomic<uint32_t> done[kPhases];
    std::atomic<uint32_t> done_small;
    std::atomic<uint32_t> failed;
    std::atomic<uint32_t> stage;
    Device device;
    uint64_t values[kSlots];
    alignas(64) std::atomic<uint32_t> rings;
    std::atomic<uint32_t> sleeps;
    static_assert(std::atomic<uint32_t>::is_always_lock_free);
};

SharedSegment::Header& SharedSegment::header() const {
    return *reinterpret_cast<Header*>(base_);
}

void SharedSegment::map(int file) {
    if (mmap(base_, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED)
        fail("mmap");
}

SharedSegment::SharedSegment(std::byte* at) : base_(at) {
    file_ = checked(memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING), "memfd_create");
    try {
        checked(fchmod(file_, S_IRUSR | S_IWUSR), "fchmod");
        checked(ftruncate(file_, kBytes), "ftruncate");
        checked(fcntl(file_, F_ADD_SEALS, kSeals), "F_ADD_SEALS");
        map(file_);
    } catch (...) {
        close(file_);
        throw;
    }
    Header& own = *new (base_) Header{};
    checked(getrandom(own.token, sizeof(own.token), 0), "getrandom");
    record_ = std::to_string(getpid()) + " " + std::to_string(file_) + " " + std::to_string(own.token[0]) +
              " " + std::to_string(own.token[1]);
}

SharedSegment::SharedSegment(std::byte* at, const std::string& record) : record_(record), base_(at) {
    int process = 0, number = 0;
    unsigned long long token[2];
    if (std::sscanf(record.c_str(), "%d %d %llu %llu", &process, &number, &token[0], &token[1]) != 4)
        throw std::runtime_error("not a record of shared memory: " + record);
    const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(number);
    // Nothing but such memory is opened: the number may be another process's, of another container.
    char target[64] = {};
    checked(readlink(path.c_str(), target, sizeof(target) - 1), "readlink");
    if (std::string(target).rfind(std::string("/memfd:") + kName, 0) != 0)
        throw std::runtime_error(path + " is not shared memory of collectives");
    const int file = checked(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK), "open");
    try {
        struct stat status {};
        checked(fstat(file, &status), "fstat");
        if (status.st_uid != geteuid() || status.st_size != static_cast<off_t>(kBytes) ||
            (fcntl(file, F_GET_SEALS) & kSeals) != kSeals)
            throw std::runtime_error(path + " is not the peer's shared memory");
        map(file);
    } catch (...) {
        close(file);
        throw;
    }
    close(file);
    process_ = static_cast<int>(syscall(SYS_pidfd_open, process, 0));
    if (header().token[0] != token[0] || header().token[1] != token[1] || process_ < 0) {
        if (process_ >= 0) close(process_);
        throw std::runtime_error(path + " is the memory of another group, or its process has ended");
    }
}

SharedSegment::SharedSegment(SharedSegment&& other) noexcept
    : record_(std::move(other.record_)),
      base_(std::exchange(other.base_, nullptr)),
      process_(std::exchange(other.process_, -1)),
      file_(std::exchange(other.file_, -1)) {}

SharedSegment::~SharedSegment() {
    if (process_ >= 0) close(process_);
    if (file_ >= 0) close(file_);
}

bool SharedSegment::done(int phase, uint32_t count) const {
    return reached(header().done[phase], count);
}

bool SharedSegment::done_small(uint32_t count) const {
    return reached(header().done_small, count);
}

void SharedSegment::publish(int phase, uint32_t count) const {
    header().done[phase].store(count, std::memory_order_release);
}

void SharedSegment::publish_small(uint32_t count) const {
    header().done_small.store(count, std::memory_order_release);
}

void SharedSegment::publish_failure() const {
    header().failed.store(1);
}

bool SharedSegment::failed() const {
    return header().failed.load(std::memory_order_acquire) != 0;
}

void SharedSegment::publish_stage(uint32_t stage) const {
    header().stage.store(stage, std::memory_order_release);
}

uint32_t SharedSegment::stage() const {
    return header().stage.load(std::memory_order_acquire);
}

SharedSegment::Device& SharedSegment::device() const {
    return header().device;
}

uint64_t& SharedSegment::value(uint32_t chunk) const {
    return header().values[chunk % kSlots];
}

uint32_t SharedSegment::rings() const {
    return header().rings.load();
}

void SharedSegment::ring() const {
    ++header().rings;
    if (header().sleeps.load() != 0) futex(&header().rings, FUTEX_WAKE, INT_MAX, nullptr);
}

void SharedSegment::sleep(uint32_t seen, std::chrono::microseconds patience) const {
    header().sleeps.store(1);
    const auto microseconds = patience.count();
    const timespec timeout{microseconds / 1'000'000, microseconds % 1'000'000 * 1'000};
    futex(&header().rings, FUTEX_WAIT, seen, &timeout);  // returns at once where it has changed
    header().sleeps.store(0);
}

bool SharedSegment::alive() const {
    if (process_ < 0) return true;
    pollfd ended{process_, POLLIN, 0};
    return poll(&ended, 1, 0) == 0;
}

SharedMemory::SharedMemory(int ranks, size_t alignment)
    : bytes_(SharedSegment::kBytes * ranks),
      reserved_(bytes_ + (alignment = std::max(alignment, SharedSegment::kHeaderBytes))) {
    void* reserved = mmap(nullptr, reserved_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED) fail("mmap");
    start_ = static_cast<std::byte*>(reserved);
    const auto address = reinterpret_cast<uintptr_t>(start_);
    base_ = start_ + ((address + alignment - 1) / alignment * alignment - address);
}

SharedMemory::~SharedMemory() {
    munmap(start_, reserved_);
}

}  // namespace anymps::distributed
