// File descriptors that processes of one user pass to each other.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace anymps::distributed {

// An open file. RAII.
class File {
  public:
    explicit File(int number = -1) : number_(number) {}
    ~File();
    File(File&& other) noexcept;
    File& operator=(File&& other) noexcept;

    int number() const { return number_; }

  private:
    int number_;
};

// A socket without a place in the file system, which ends with the process. Names hold random bits that only
// the ranks of a group know; what other users send is dropped. RAII.
class FileSocket {
  public:
    struct Message {
        int32_t rank = 0;          // of the sender
        uint32_t memory_type = 0;  // vulkan::SharedMemoryFile
    };
    struct Received {
        Message message;
        File file;
    };

    // Throws std::system_error.
    explicit FileSocket(const std::string& name);

    // False where the receiver has no room: to be tried again. Throws std::system_error.
    bool send(const std::string& to, const Message& message, int file) const;
    // nullopt where nothing has come. Throws std::system_error.
    std::optional<Received> receive() const;
    void wait(std::chrono::milliseconds patience) const;

  private:
    File socket_;
};

}  // namespace anymps::distributed
