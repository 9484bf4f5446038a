#include "runtime/command_origin.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <utility>
#include <vector>

namespace anymps::runtime {
namespace {

struct Work {
    double operations;
    std::string shape;
};

struct Stacks {
    uint64_t session = 0;
    std::vector<uint64_t> operators, users;
};

thread_local std::optional<Work> next_work;
thread_local Stacks stacks;

Stacks& stacks_of(uint64_t session) {
    if (stacks.session != session) stacks = {session, {}, {}};
    return stacks;
}

uint64_t top(const std::vector<uint64_t>& stack) {
    return stack.empty() ? 0 : stack.back();
}

void pop(std::vector<uint64_t>& stack) {
    if (!stack.empty()) stack.pop_back();  // pushed before the session otherwise
}

}  // namespace

int64_t host_time() {
    using namespace std::chrono;
    return duration_cast<nanoseconds>(system_clock::now().time_since_epoch()).count();
}

int32_t thread_number() {
    thread_local const auto number = static_cast<int32_t>(syscall(SYS_gettid));
    return number;
}

CommandOrigin command_origin() {
    CommandOrigin origin;
    origin.correlation = top(stacks.operators);
    origin.user_correlation = top(stacks.users);
    origin.thread = thread_number();
    origin.host_begin = host_time();
    return origin;
}

void note_work(double operations, std::string shape) {
    next_work = Work{operations, std::move(shape)};
}

void take_work(CommandOrigin& origin) {
    if (!next_work) return;
    origin.operations = next_work->operations;
    origin.shape = std::move(next_work->shape);
    next_work.reset();
}

void push_correlation(uint64_t session, uint64_t id) {
    stacks_of(session).operators.push_back(id);
}

void pop_correlation(uint64_t session) {
    pop(stacks_of(session).operators);
}

uint64_t push_user_correlation(uint64_t session, uint64_t id) {
    auto& users = stacks_of(session).users;
    const uint64_t below = top(users);
    users.push_back(id);
    return below;
}

void pop_user_correlation(uint64_t session) {
    pop(stacks_of(session).users);
}

}  // namespace anymps::runtime
