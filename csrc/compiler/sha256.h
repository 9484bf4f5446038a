// SHA-256 (FIPS 180-4), for names and checks of cached files.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace anymps::compiler {

class Sha256 {
  public:
    using Digest = std::array<uint8_t, 32>;

    Sha256& add(std::string_view bytes);
    // The bytes behind their length: what follows cannot be taken for a part of them.
    Sha256& add_field(std::string_view bytes);
    // Of everything added; nothing may be added afterwards.
    Digest finish();
    std::string finish_hex();

  private:
    void block(const uint8_t* bytes);

    std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                   0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    std::array<uint8_t, 64> rest_{};  // of a block that is not complete yet
    uint64_t bytes_ = 0;              // added so far
};

inline Sha256::Digest sha256(std::string_view bytes) {
    return Sha256().add(bytes).finish();
}

}  // namespace anymps::compiler
