#include "lockstep/checkpoint/safetensors_header.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <set>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/checkpoint/dtype.h"

namespace lockstep::checkpoint {
namespace {

constexpr size_t kMaxTensors = 1'000'000;
constexpr size_t kMaxDims = 8;
constexpr size_t kMaxName = 1024;
constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxShown = 200;  // bytes of what was found, in a message
constexpr const char* kMetadata = "__metadata__";

std::string shown(std::string_view text) {
  return text.size() <= kMaxShown ? std::string(text) : cat(text.substr(0, kMaxShown), "...");
}

class Refusal {
 public:
  explicit Refusal(std::string_view origin) : origin_(origin) {}
  [[noreturn]] void operator()(const std::string& what) const {
    throw DataError({.code = "LS1290", .what = cat("not a valid safetensors file: ", what), .where = origin_});
  }
  [[noreturn]] void operator()(std::string_view tensor, const std::string& what) const {
    (*this)(cat("tensor '", shown(tensor), "': ", what));
  }

 private:
  std::string origin_;
};

// The characters of a source, one by one.
class Characters {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = char;

  Characters() = default;  // the end
  Characters(const TextSource& source, const Refusal& refuse) : source_(&source), refuse_(&refuse) { refill(); }

  char operator*() const { return part_[at_]; }
  Characters& operator++() {
    if (++at_ == part_.size()) refill();
    return *this;
  }
  bool operator==(const Characters& other) const { return part_.empty() == other.part_.empty(); }

 private:
  void refill() {
    at_ = 0;
    part_ = (*source_)();
    // The JSON parser takes a zero byte for the end of the text.
    if (part_.find('\0') != std::string_view::npos) (*refuse_)("the header holds a zero byte");
  }

  const TextSource* source_ = nullptr;
  const Refusal* refuse_ = nullptr;
  std::string_view part_;
  size_t at_ = 0;
};

uint64_t byte_size(const SafetensorsEntry& entry, const Dtype& dtype, const Refusal& refuse) {
  auto bits = static_cast<uint64_t>(dtype.bits);
  for (const int64_t size : entry.shape) {
    if (__builtin_mul_overflow(bits, static_cast<uint64_t>(size), &bits))
      refuse(entry.name, "its size overflows 64 bits");
  }
  if (bits % 8 != 0) refuse(entry.name, "its size is not a whole number of bytes");
  return bits / 8;
}

// Takes the events of the JSON parser. Where it stands is `place_`, and the depth of a value that nobody reads.
class Handler {
 public:
  Handler(const Refusal& refuse, SafetensorsHeader* header) : refuse_(refuse), header_(*header) {}

  bool null() { return scalar("null"); }
  bool boolean(bool value) { return scalar(value ? "true" : "false"); }
  bool number_integer(int64_t value) { return scalar(std::to_string(value)); }
  bool number_float(double, const std::string& text) { return scalar(text); }
  bool binary(Json::binary_t&) { return scalar("bytes"); }

  bool number_unsigned(uint64_t value) {
    if (place_ == Place::kShape && value <= INT64_MAX) {
      if (entry_.shape.size() == kMaxDims) refuse_(entry_.name, cat("more than ", kMaxDims, " dimensions"));
      entry_.shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (place_ == Place::kOffsets && num_offsets_ < 2) {
      (num_offsets_++ == 0 ? entry_.begin : entry_.end) = value;
      return true;
    }
    return scalar(std::to_string(value));
  }

  bool string(std::string& value) {
    if (place_ == Place::kMetadata) {
      header_.metadata.emplace(key_, std::move(value));
    } else if (place_ == Place::kEntry && key_ == "dtype") {
      const auto dtype = find_dtype(value);
      if (!dtype) refuse_(entry_.name, cat("unknown dtype '", shown(value), "'"));
      entry_.dtype = dtype->name;
    } else {
      scalar(cat("\"", shown(value), "\""));
    }
    return true;
  }

  bool key(std::string& value) {
    if (place_ == Place::kSkipped) return true;
    if (place_ == Place::kRoot) {
      if (value == kMetadata && std::exchange(has_metadata_, true)) duplicate(value);
    } else if (!keys_.insert(value).second) {
      duplicate(value);
    }
    key_ = std::move(value);
    return true;
  }

  bool start_object(size_t) {
    if (place_ == Place::kStart) {
      place_ = Place::kRoot;
    } else if (place_ == Place::kRoot && key_ == kMetadata) {
      keys_.clear();
      place_ = Place::kMetadata;
    } else if (place_ == Place::kRoot) {
      start_entry();
    } else {
      start_nested();
    }
    return true;
  }

  bool end_object() {
    if (place_ == Place::kSkipped) return end_nested();
    if (place_ == Place::kEntry) end_entry();
    place_ = Place::kRoot;
    return true;
  }

  bool start_array(size_t) {
    if (place_ == Place::kEntry && key_ == "shape") {
      place_ = Place::kShape;
    } else if (place_ == Place::kEntry && key_ == "data_offsets") {
      place_ = Place::kOffsets;
    } else {
      start_nested();
    }
    return true;
  }

  bool end_array() {
    if (place_ == Place::kSkipped) return end_nested();
    if (place_ == Place::kOffsets && num_offsets_ != 2) bad_offsets();
    place_ = Place::kEntry;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) {
    refuse_(cat("malformed JSON at byte ", position, " of the header: ", shown(error.what())));
  }

 private:
  enum class Place { kStart, kRoot, kMetadata, kEntry, kShape, kOffsets, kSkipped };

  [[noreturn]] void duplicate(const std::string& key) const {
    const std::string what = cat("duplicate key \"", shown(key), "\"");
    if (place_ == Place::kEntry) refuse_(entry_.name, what);
    refuse_(what);
  }
  [[noreturn]] void bad_offsets() const { refuse_(entry_.name, "data_offsets are not two non-negative integers"); }

  // A value that is not what is wanted here, unless nobody reads it.
  bool scalar(const std::string& text) const {
    if (place_ == Place::kStart) refuse_("the header is not an object");
    if (place_ == Place::kRoot && key_ == kMetadata) refuse_("__metadata__ is not an object");
    if (place_ == Place::kRoot) refuse_(key_, "is not an object");
    if (place_ == Place::kMetadata) refuse_(cat("__metadata__ '", shown(key_), "' is not a string"));
    if (place_ == Place::kShape) refuse_(entry_.name, cat("shape holds ", shown(text), ", not a size"));
    if (place_ == Place::kOffsets) bad_offsets();
    if (place_ == Place::kEntry) check_unread();
    return true;
  }

  // A known key has come with a value of another kind.
  void check_unread() const {
    if (key_ == "dtype") refuse_(entry_.name, "dtype is not a string");
    if (key_ == "shape") refuse_(entry_.name, "shape is not a list");
    if (key_ == "data_offsets") bad_offsets();
  }

  void start_nested() {
    if (place_ == Place::kSkipped) {
      if (++skipped_depth_ > kMaxDepth) refuse_(cat("JSON nested deeper than ", kMaxDepth));
      return;
    }
    scalar("a list");
    place_ = Place::kSkipped;
    skipped_depth_ = 1;
  }
  bool end_nested() {
    if (--skipped_depth_ == 0) place_ = Place::kEntry;
    return true;
  }

  void start_entry() {
    if (key_.size() > kMaxName) refuse_(cat("a name of ", key_.size(), " bytes, at most ", kMaxName));
    if (header_.entries.size() == kMaxTensors) refuse_(cat("more than ", kMaxTensors, " tensors"));
    entry_ = {.name = std::string(std::string_view(key_)), .dtype = {}, .shape = {}};  // no larger than it must be
    keys_.clear();
    num_offsets_ = 0;
    place_ = Place::kEntry;
  }

  void end_entry() {
    for (const char* key : {"dtype", "shape", "data_offsets"}) {
      if (!keys_.contains(key)) refuse_(entry_.name, cat("has no '", key, "'"));
    }
    const uint64_t bytes = byte_size(entry_, *find_dtype(entry_.dtype), refuse_);
    if (entry_.end < entry_.begin || entry_.end - entry_.begin != bytes)
      refuse_(entry_.name,
              cat("data_offsets [", entry_.begin, ", ", entry_.end, "], but dtype and shape need ", bytes, " bytes"));
    header_.entries.push_back(std::move(entry_));
  }

  const Refusal& refuse_;
  SafetensorsHeader& header_;
  Place place_ = Place::kStart;
  std::string key_;            // the last one
  std::set<std::string> keys_; // of the object that is being read
  bool has_metadata_ = false;
  SafetensorsEntry entry_{};
  int num_offsets_ = 0;
  size_t skipped_depth_ = 0;
};

// Sorted by offset, each tensor begins where the one before ended, and the last ends with the file.
void check_cover(const SafetensorsHeader& header, uint64_t data_size, const Refusal& refuse) {
  std::vector<const SafetensorsEntry*> order;
  order.reserve(header.entries.size());
  for (const SafetensorsEntry& entry : header.entries) order.push_back(&entry);
  std::sort(order.begin(), order.end(),
            [](const auto* a, const auto* b) { return std::pair(a->begin, a->end) < std::pair(b->begin, b->end); });
  uint64_t at = 0;
  for (const SafetensorsEntry* entry : order) {
    if (entry->begin != at)
      refuse(entry->name, cat("begins at byte ", entry->begin, entry->begin < at ? ", inside" : ", after a hole behind",
                              " the tensor before it, which ends at ", at));
    at = entry->end;
  }
  if (at != data_size) refuse(cat("the tensors end at byte ", at, " of the data, the file at ", data_size));
}

}  // namespace

const SafetensorsEntry* SafetensorsHeader::find(std::string_view name) const {
  const auto found = std::lower_bound(entries.begin(), entries.end(), name,
                                      [](const SafetensorsEntry& entry, std::string_view n) { return entry.name < n; });
  return found == entries.end() || found->name != name ? nullptr : &*found;
}

SafetensorsHeader parse_safetensors_header(const TextSource& source, uint64_t data_size, std::string_view origin) {
  const Refusal refuse(origin);
  const Characters begin(source, refuse), end;
  if (begin == end || *begin != '{') refuse("the header does not begin with '{'");
  SafetensorsHeader header;
  Handler handler(refuse, &header);
  Json::sax_parse(begin, end, &handler);
  auto& entries = header.entries;
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  const auto twice = std::adjacent_find(entries.begin(), entries.end(),
                                        [](const auto& a, const auto& b) { return a.name == b.name; });
  if (twice != entries.end()) refuse(cat("duplicate key \"", shown(twice->name), "\""));
  check_cover(header, data_size, refuse);
  return header;
}

SafetensorsHeader parse_safetensors_header(std::string_view text, uint64_t data_size, std::string_view origin) {
  bool given = false;
  return parse_safetensors_header(
      [&]() -> std::string_view { return std::exchange(given, true) ? std::string_view() : text; }, data_size, origin);
}

}  // namespace lockstep::checkpoint
