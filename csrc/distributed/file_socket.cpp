#include "distributed/file_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace anymps::distributed {
namespace {

[[noreturn]] void fail(const char* what) {
    throw std::system_error(errno, std::generic_category(), what);
}

struct Address {
    sockaddr_un name{};
    socklen_t bytes;

    explicit Address(const std::string& text) {
        if (text.size() + 1 > sizeof(name.sun_path)) throw std::runtime_error("a long name of a socket");
        name.sun_family = AF_UNIX;
        // Behind a zero byte: an abstract name.
        std::copy(text.begin(), text.end(), name.sun_path + 1);
        bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
    }
    const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&name); }
};

union Control {
    cmsghdr header;
    std::byte bytes[CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(ucred))];
};

template <class Content>
void put(cmsghdr* part, int type, const Content& content) {
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = type;
    part->cmsg_len = CMSG_LEN(sizeof(content));
    std::memcpy(CMSG_DATA(part), &content, sizeof(content));
}

msghdr header_of(iovec& content, Control& control) {
    msghdr header{};
    header.msg_iov = &content;
    header.msg_iovlen = 1;
    header.msg_control = control.bytes;
    header.msg_controllen = sizeof(control.bytes);
    return header;
}

}  // namespace

File::~File() {
    if (number_ >= 0) close(number_);
}

File::File(File&& other) noexcept : number_(std::exchange(other.number_, -1)) {}

File& File::operator=(File&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
}

FileSocket::FileSocket(const std::string& name)
    : socket_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    const Address address(name);
    const int on = 1;
    if (socket_.number() < 0) fail("socket");
    if (setsockopt(socket_.number(), SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) != 0) fail("SO_PASSCRED");
    if (bind(socket_.number(), address.get(), address.bytes) != 0) fail("bind");
}

bool FileSocket::send(const std::string& to, const Message& message, int file) const {
    const Address address(to);
    Message copy = message;
    iovec content{&copy, sizeof(copy)};
    Control control{};
    msghdr header = header_of(content, control);
    header.msg_name = const_cast<sockaddr_un*>(&address.name);
    header.msg_namelen = address.bytes;
    cmsghdr* part = CMSG_FIRSTHDR(&header);
    put(part, SCM_RIGHTS, file);
    // Else the kernel tells the real user, where receivers compare the effective one.
    put(CMSG_NXTHDR(&header, part), SCM_CREDENTIALS, ucred{getpid(), geteuid(), getegid()});
    if (sendmsg(socket_.number(), &header, MSG_NOSIGNAL) >= 0) return true;
    if (errno != EAGAIN && errno != EINTR && errno != ENOBUFS) fail("sendmsg");
    return false;
}

std::optional<FileSocket::Received> FileSocket::receive() const {
    while (true) {
        Received received;
        iovec content{&received.message, sizeof(received.message)};
        Control control{};
        msghdr header = header_of(content, control);
        const ssize_t bytes = recvmsg(socket_.number(), &header, MSG_CMSG_CLOEXEC);
        if (bytes < 0 && errno == EINTR) continue;
        if (bytes < 0 && errno == EAGAIN) return std::nullopt;
        if (bytes < 0) fail("recvmsg");
        ucred sender{};
        sender.uid = static_cast<uid_t>(-1);
        for (cmsghdr* part = CMSG_FIRSTHDR(&header); part; part = CMSG_NXTHDR(&header, part)) {
            if (part->cmsg_level != SOL_SOCKET) continue;
            if (part->cmsg_type == SCM_CREDENTIALS) std::memcpy(&sender, CMSG_DATA(part), sizeof(sender));
            if (part->cmsg_type != SCM_RIGHTS) continue;
            int number;
            std::memcpy(&number, CMSG_DATA(part), sizeof(number));
            received.file = File(number);
        }
        if (bytes == sizeof(Message) && sender.uid == geteuid() && received.file.number() >= 0)
            return received;
    }
}

void FileSocket::wait(std::chrono::milliseconds patience) const {
    pollfd readable{socket_.number(), POLLIN, 0};
    poll(&readable, 1, static_cast<int>(patience.count()));
}

}  // namespace anymps::distributed
