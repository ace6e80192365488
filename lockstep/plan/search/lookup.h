// What is made once for each combination of a few numbers, and found again in tens of nanoseconds.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>

namespace lockstep::plan {

using LookupKey = std::array<int, 8>;

struct LookupHash {
  // SplitMix64 (Steele et al. 2014) over the numbers.
  size_t operator()(const LookupKey& key) const {
    uint64_t hash = 0;
    for (const int number : key) {
      hash += 0x9e3779b97f4a7c15ULL + static_cast<uint64_t>(static_cast<uint32_t>(number));
      hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9ULL;
      hash ^= hash >> 27;
    }
    return static_cast<size_t>(hash);
  }
};

// References live as long as this object.
template <typename Value>
class Lookup {
 public:
  // `make` is called with the key where it is new. Neighbours in a search ask for the same one.
  template <typename Make>
  Value& of(const LookupKey& key, const Make& make) {
    if (last_ != nullptr && key == last_key_) return *last_;
    std::unique_ptr<Value>& found = known_[key];
    if (!found) found = std::make_unique<Value>(make());
    last_key_ = key;
    return *(last_ = found.get());
  }
  template <typename Use>
  void for_each(const Use& use) {
    for (auto& [key, value] : known_) use(*value);
  }
  void clear() {
    known_.clear();
    last_ = nullptr;
  }

 private:
  std::unordered_map<LookupKey, std::unique_ptr<Value>, LookupHash> known_;
  LookupKey last_key_{};
  Value* last_ = nullptr;
};

}  // namespace lockstep::plan
