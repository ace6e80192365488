// xxh3 of bytes: checksums of files and names of random streams.
#pragma once

#include <cstdint>
#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep {

uint64_t hash64(std::string_view bytes);
uint64_t hash64(const void* data, size_t size);
// 16 lower-case hexadecimal digits.
std::string hash_text(uint64_t hash);

}  // namespace lockstep
