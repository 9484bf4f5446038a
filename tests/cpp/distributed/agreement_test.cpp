#include "distributed/agreement.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "distributed/exported_segments.h"
#include "distributed/file_socket.h"
#include "runtime/address_map.h"

namespace anymps::distributed {
namespace {

using std::chrono::milliseconds;

constexpr auto kLong = milliseconds(60'000);

// Ranks that are threads of this process, each with addresses of its own.
class Ranks {
  public:
    explicit Ranks(int ranks) {
        std::vector<SharedSegment> own;
        for (int rank = 0; rank < ranks; ++rank) {
            memory_.push_back(std::make_unique<SharedMemory>(ranks, SharedSegment::kHeaderBytes));
            own.emplace_back(memory_.back()->segment(rank));
        }
        segments_.resize(ranks);
        for (int rank = 0; rank < ranks; ++rank) {
            for (int peer = 0; peer < ranks; ++peer)
                segments_[rank].emplace_back(memory_[rank]->segment(peer), own[peer].record());
        }
        own_ = std::move(own);
    }

    const std::vector<SharedSegment>& segments(int rank) const { return segments_[rank]; }
    const SharedMemory& memory(int rank) const { return *memory_[rank]; }

    // Runs part(agreement) of all ranks at once, and returns what each of them said.
    template <class Part>
    std::vector<char> run(Part part) {
        std::vector<char> answers(segments_.size());
        std::vector<std::thread> threads;
        for (size_t rank = 0; rank < segments_.size(); ++rank) {
            threads.emplace_back([&, rank] {
                Agreement agreement(segments_[rank], static_cast<int>(rank), kLong);
                answers[rank] = part(agreement);
            });
        }
        for (auto& thread : threads) thread.join();
        return answers;
    }

  private:
    std::vector<std::unique_ptr<SharedMemory>> memory_;
    std::vector<SharedSegment> own_;
    std::vector<std::vector<SharedSegment>> segments_;
};

TEST(Agreement, AllRanksComeToEveryStage) {
    Ranks ranks(3);
    const auto answers = ranks.run([](Agreement& agreement) {
        for (int stage = 0; stage < 50; ++stage) {
            if (!agreement.reach()) return false;
        }
        return agreement.holds();
    });
    EXPECT_EQ(answers, std::vector<char>({true, true, true}));
}

TEST(Agreement, NoneGoesOnFromWhereOneHasLeft) {
    for (int left_at = 0; left_at < 3; ++left_at) {
        Ranks ranks(3);
        const auto answers = ranks.run([&](Agreement& agreement) {
            for (int stage = 0; stage < 3; ++stage) {
                if (agreement.rank() == 1 && stage == left_at) {
                    agreement.leave();
                    return false;
                }
                if (!agreement.reach()) return false;
            }
            return true;
        });
        EXPECT_EQ(answers, std::vector<char>({false, false, false})) << left_at;
    }
}

TEST(Agreement, WhoDoesNotComeIsAnErrorForAll) {
    const Ranks ranks(2);
    Agreement agreement(ranks.segments(0), 0, milliseconds(100));
    EXPECT_THROW(agreement.reach(), std::runtime_error);
    Agreement later(ranks.segments(1), 1, kLong);
    EXPECT_TRUE(later.reach());
    EXPECT_THROW(later.reach(), std::runtime_error);
}

TEST(FileSocket, PassesAnOpenFile) {
    const FileSocket socket("anymps test of a socket"), other("anymps test of another one");
    EXPECT_THROW(FileSocket("anymps test of a socket"), std::system_error);
    EXPECT_FALSE(socket.receive());
    const File file(memfd_create("passed", MFD_CLOEXEC));
    ASSERT_TRUE(other.send("anymps test of a socket", {3, 7}, file.number()));
    const auto received = socket.receive();
    ASSERT_TRUE(received);
    EXPECT_EQ(received->message.rank, 3);
    EXPECT_EQ(received->message.memory_type, 7u);
    struct stat sent {};
    struct stat come {};
    ASSERT_EQ(fstat(file.number(), &sent), 0);
    ASSERT_EQ(fstat(received->file.number(), &come), 0);
    EXPECT_EQ(sent.st_ino, come.st_ino);
    EXPECT_THROW(socket.send("anymps test of no socket", {}, file.number()), std::system_error);
}

// Whether a process of this real and effective user can send a file that is received.
bool is_received_from(const FileSocket& socket, const std::string& name, uid_t real, uid_t effective) {
    const File file(memfd_create("passed", MFD_CLOEXEC));
    const pid_t child = fork();
    if (child == 0) {  // makes nothing of the process's threads and locks, and runs no destructors
        bool sent = false;
        try {
            sent = setresuid(real, effective, effective) == 0 &&
                   FileSocket(name + " peer").send(name, {}, file.number());
        } catch (const std::exception&) {
        }
        _exit(sent ? 0 : 1);
    }
    int status = 1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    return socket.receive().has_value();
}

TEST(FileSocket, TakesNothingFromAnotherUser) {
    if (geteuid() != 0) GTEST_SKIP() << "to become another user needs root";
    constexpr uid_t kOther = 65534;
    const std::string name = "anymps test of users";
    const FileSocket socket(name);
    EXPECT_TRUE(is_received_from(socket, name, 0, 0));
    EXPECT_FALSE(is_received_from(socket, name, kOther, kOther));
    EXPECT_FALSE(is_received_from(socket, name, 0, kOther));
    EXPECT_TRUE(is_received_from(socket, name, kOther, 0));
}

// Copies of the host's. stale: what was read once at a place is read there again.
class Copies final : public StepExecutor {
  public:
    Copies(const SharedMemory& memory, bool stale) : memory_(memory), stale_(stale) {}

    bool on_device() const override { return false; }
    uint64_t segment(int rank) const override { return reinterpret_cast<uint64_t>(memory_.segment(rank)); }
    uint64_t address(const HostArgument&) const override { return 0; }
    void copy(uint64_t to, uint64_t from, size_t bytes) override {
        std::vector<std::byte> data(bytes);
        std::memcpy(data.data(), host(from, bytes), bytes);
        if (stale_) data = seen_.try_emplace(from, data).first->second;
        std::memcpy(host(to, bytes), data.data(), bytes);
    }
    void reduce(const Reduced&) override {}
    Step submit(uint64_t) override { return {}; }
    bool completed(const Step&) const override { return true; }
    void wait(const Step&) const override {}

  private:
    std::byte* host(uint64_t address, size_t bytes) const {
        const uint64_t begin = segment(0);
        if (address >= begin && address < begin + memory_.bytes())
            return reinterpret_cast<std::byte*>(address);
        return runtime::host_pointer(address, bytes);
    }

    const SharedMemory& memory_;
    bool stale_;
    std::map<uint64_t, std::vector<std::byte>> seen_;
};

TEST(ExportedSegments, AreTakenOnlyWhereAllRanksReadWhatTheOthersWrite) {
    for (const bool stale : {false, true}) {
        Ranks ranks(2);
        const auto answers = ranks.run([&](Agreement& agreement) {
            Copies copies(ranks.memory(agreement.rank()), stale && agreement.rank() == 1);
            const bool right = verify_segments(copies, agreement);
            if (!right) agreement.leave();
            return right;
        });
        EXPECT_EQ(answers, std::vector<char>({!stale, !stale}));
    }
}

}  // namespace
}  // namespace anymps::distributed
