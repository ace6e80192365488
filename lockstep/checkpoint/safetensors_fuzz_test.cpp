// Headers changed at random, from a fixed seed: each is refused with the one error that files may give, or is what the
// format says. Run under the sanitizers too.
// A program of its own: it replaces operator new.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>
#include <random>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/checkpoint/dtype.h"
#include "lockstep/checkpoint/safetensors.h"

namespace {

// What this program has allocated, and the most of it at one time, in bytes.
std::atomic<int64_t> allocated{0};
std::atomic<int64_t> most_allocated{0};

}  // namespace

void* operator new(size_t size) {
  void* const block = std::malloc(size);
  if (block == nullptr) throw std::bad_alloc();
  const int64_t now = allocated += static_cast<int64_t>(malloc_usable_size(block));
  if (now > most_allocated) most_allocated = now;
  return block;
}
void operator delete(void* block) noexcept {
  allocated -= static_cast<int64_t>(malloc_usable_size(block));
  std::free(block);
}
void operator delete(void* block, size_t) noexcept { operator delete(block); }

namespace lockstep::checkpoint {
namespace {

constexpr uint64_t kDataSize = 53;
constexpr std::string_view kHeader =
    R"({"__metadata__":{"format":"pt","n\u00e4me":"x"},"a.weight":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
    R"("b":{"dtype":"U8","shape":[3],"data_offsets":[16,19],"note":{"x":[1,{"y":null}]}},"c":{"dtype":"F16","shape":[],)"
    R"("data_offsets":[19,21]},"d":{"shape":[0,7],"dtype":"BF16","data_offsets":[21,21]},"e":{"dtype":"F64","shape":[1,2,2],)"
    R"("data_offsets":[21,53]}}   )";

using Random = std::mt19937_64;

std::string_view pick(Random& random, std::initializer_list<std::string_view> choices) {
  return *(choices.begin() + random() % choices.size());
}

std::string mutant(Random& random) {
  std::string text(kHeader);
  for (uint64_t changes = random() % 4; changes > 0 && !text.empty(); --changes) {
    const size_t at = random() % text.size();
    const size_t span = std::min<size_t>(text.size() - at, 1 + random() % 24);
    switch (random() % 7) {
      case 0:
        text[at] = static_cast<char>(random());
        break;
      case 1:
        text.erase(at, span);
        break;
      case 2:
        text.insert(at, text.substr(at, span));
        break;
      case 3:
        text.insert(at, pick(random, {"{", "}", "[", "]", "\"", ",", ":", "\\", "\\u0000", "\\ud83d", "\x80", "null", "\"a\":"}));
        break;
      case 4:
        text.insert(random() % text.size(), text.substr(at, span));
        break;
      case 5:
        text[at] = static_cast<char>(text[at] ^ (1 << random() % 8));
        break;
      default: {
        const size_t digit = text.find_first_of("0123456789", at);
        if (digit == std::string::npos) break;
        text.replace(digit, 1, pick(random, {"0", "1", "2", "4", "16", "21", "53", "-1", "1.0", "1e9", "4294967296",
                                             "9223372036854775807", "18446744073709551615", "99999999999999999999"}));
      }
    }
  }
  return text;
}

// Given in parts of this many bytes.
SafetensorsHeader parse_in_parts(const std::string& text, size_t part) {
  size_t at = 0;
  std::string held;  // overwritten each time, as a file's buffer is
  return parse_safetensors_header(
      [&]() -> std::string_view {
        held = text.substr(std::min(at, text.size()), part);
        at += held.size();
        return held;
      },
      kDataSize, "fuzz");
}

void expect_sound(const SafetensorsHeader& header, const std::string& text) {
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (const SafetensorsEntry& entry : header.entries) {
    EXPECT_EQ(header.find(entry.name), &entry) << text;
    uint64_t bits = static_cast<uint64_t>(find_dtype(entry.dtype)->bits);
    for (const int64_t size : entry.shape) bits *= static_cast<uint64_t>(size);
    EXPECT_EQ(entry.end - entry.begin, bits / 8) << text;
    ranges.emplace_back(entry.begin, entry.end);
  }
  std::sort(ranges.begin(), ranges.end());
  uint64_t at = 0;
  for (const auto& [begin, end] : ranges) {
    EXPECT_EQ(begin, at) << text;
    at = end;
  }
  EXPECT_EQ(at, kDataSize) << text;
}

TEST(SafetensorsFuzz, RefusesOrReadsWhatTheFormatSays) {
  Random random(20240607);
  int accepted = 0, refused = 0;
  for (int i = 0; i < 100'000; ++i) {
    const std::string text = mutant(random);
    std::string first, second;
    try {
      const SafetensorsHeader header = parse_safetensors_header(text, kDataSize, "fuzz");
      expect_sound(header, text);
      ++accepted;
    } catch (const DataError& error) {
      first = error.what();
      EXPECT_EQ(error.message().code, "LS1290") << text;
      EXPECT_LT(first.size(), 2000u);
      ++refused;
    }
    if (i % 8 != 0) continue;
    try {
      parse_in_parts(text, 1 + i % 97);
    } catch (const DataError& error) {
      second = error.what();
    }
    // A zero byte is found when its part comes: another fault may be found before it.
    EXPECT_TRUE(first == second || text.find('\0') != std::string::npos) << text << "\n" << first << "\n" << second;
  }
  EXPECT_GT(accepted, 10'000);
  EXPECT_GT(refused, 50'000);
}

// A header of 12 MB takes at most twice as much; what a tree of it would take is ten times that.
TEST(SafetensorsFuzz, MemoryIsBoundedByTheHeader) {
  const std::filesystem::path path = std::filesystem::path(::testing::TempDir()) / "lockstep-many.safetensors";
  int64_t header_size = 0;
  {
    std::string header = "{";
    for (int i = 0; i < 120'000; ++i)
      header += cat(i == 0 ? "" : ",", "\"model.layers.", i, ".self_attn.q_proj.weight\":{\"dtype\":\"BF16\",\"shape\":[0,4096],\"data_offsets\":[0,0]}");
    header += "}";
    header_size = static_cast<int64_t>(header.size());
    const uint64_t size = header.size();
    write_file(path, std::string(reinterpret_cast<const char*>(&size), sizeof size) + header);
  }
  const int64_t before = allocated;
  most_allocated = before;
  const SafetensorsFile file(path);
  EXPECT_EQ(file.header().entries.size(), 120'000u);
  EXPECT_LT(most_allocated - before, 2 * header_size);
  EXPECT_GT(most_allocated - before, header_size / 2);
}

}  // namespace
}  // namespace lockstep::checkpoint
