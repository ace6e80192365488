#include "lockstep/base/hash.h"

#include <xxhash.h>

namespace lockstep {

uint64_t hash64(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }
uint64_t hash64(const void* data, size_t size) { return XXH3_64bits(data, size); }

struct Hasher::State {
  XXH3_state_t* xxh3 = XXH3_createState();
  ~State() { XXH3_freeState(xxh3); }
};

Hasher::Hasher() : state_(std::make_unique<State>()) { XXH3_64bits_reset(state_->xxh3); }
Hasher::~Hasher() = default;
void Hasher::update(const void* data, size_t size) { XXH3_64bits_update(state_->xxh3, data, size); }
uint64_t Hasher::hash() const { return XXH3_64bits_digest(state_->xxh3); }

std::string hash_text(uint64_t hash) {
  std::string text(16, '0');
  for (int digit = 15; digit >= 0; --digit, hash >>= 4) text[static_cast<size_t>(digit)] = "0123456789abcdef"[hash & 15];
  return text;
}

}  // namespace lockstep
