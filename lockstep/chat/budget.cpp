#include "lockstep/chat/budget.h"

#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/chat/value.h"

namespace lockstep::chat {
namespace {

constexpr int64_t kBytesPerStep = 16;
constexpr int64_t kObject = 32;  // what an object takes besides itself: its counts, its block of memory

int64_t size_of(const std::string& text) { return static_cast<int64_t>(text.capacity()); }

template <typename T>
int64_t size_of(const std::vector<T>& items) {
  return static_cast<int64_t>(items.capacity() * sizeof(T));
}

}  // namespace

void fail(const std::string& what) { throw TemplateFailure{"LS1248", what}; }

std::string shortened(std::string_view text, size_t most) {
  if (text.size() <= most) return std::string(text);
  size_t end = most;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0u) == 0x80u) --end;
  return cat(text.substr(0, end), "...");
}

void Budget::spend(int64_t steps) {
  left_ -= steps;
  if (left_ < 0) throw TemplateFailure{"LS1250", cat("the template takes more than ", limits_.steps, " steps of work")};
}

void Budget::room(int64_t bytes) const {
  if (bytes > limits_.memory_bytes - held_)
    throw TemplateFailure{"LS1250", cat("the template's values take more than ", limits_.memory_bytes, " bytes")};
}

void Budget::check_depth(int depth) const {
  if (depth > limits_.value_depth)
    throw TemplateFailure{"LS1250", cat("lists and dictionaries are nested deeper than ", limits_.value_depth)};
}

Value Budget::text(std::string text) {
  const auto size = static_cast<int64_t>(text.size());
  if (size > limits_.text_bytes)
    throw TemplateFailure{"LS1250", cat("a text of more than ", limits_.text_bytes, " bytes")};
  spend(1 + size / kBytesPerStep);
  Charge charge(*this, size_of(text) + static_cast<int64_t>(sizeof(Text)) + kObject);
  return Value(std::make_shared<const Text>(Text{.value = std::move(text), .charge = std::move(charge)}));
}

Value Budget::list(std::vector<Value> items, bool tuple) {
  spend(1 + static_cast<int64_t>(items.size()) / 4);
  int depth = 1;
  for (const Value& item : items) depth = std::max(depth, 1 + item.depth());
  check_depth(depth);
  Charge charge(*this, size_of(items) + static_cast<int64_t>(sizeof(Sequence)) + kObject);
  return Value(std::make_shared<const Sequence>(
      Sequence{.items = std::move(items), .tuple = tuple, .depth = depth, .charge = std::move(charge)}));
}

Value Budget::dict(std::vector<std::pair<Value, Value>> items) {
  spend(1 + static_cast<int64_t>(items.size()) / 4);
  int depth = 1;
  for (const auto& [key, item] : items) depth = std::max({depth, 1 + key.depth(), 1 + item.depth()});
  check_depth(depth);
  Charge charge(*this, size_of(items) + static_cast<int64_t>(sizeof(Mapping)) + kObject);
  return Value(std::make_shared<Mapping>(Mapping{.items = std::move(items), .depth = depth, .charge = std::move(charge)}));
}

Value Budget::function(std::string name, std::function<Value(const Arguments&)> call, const Value& holds) {
  spend(1);
  check_depth(1 + holds.depth());
  constexpr int64_t kCaptured = 96;  // on the heap, by std::function
  Charge charge(*this, size_of(name) + static_cast<int64_t>(sizeof(Callable)) + kObject + kCaptured);
  return Value(std::make_shared<const Callable>(
      Callable{.name = std::move(name), .call = std::move(call), .depth = 1 + holds.depth(), .charge = std::move(charge)}));
}

Value Budget::undefined(std::string_view name) { return Value(Undefined{*text(shortened(name, 60)).get<Value::String>()}); }

Budget::Level::Level(Budget& budget) : budget_(budget) {
  if (budget_.depth_ >= budget_.limits_.depth)
    throw TemplateFailure{"LS1250", cat("expressions, statements and macros are nested deeper than ", budget_.limits_.depth)};
  ++budget_.depth_;
}

TextBuilder& TextBuilder::add(std::string_view part) {
  if (static_cast<int64_t>(text_.size() + part.size()) > budget_.limits().text_bytes)
    throw TemplateFailure{"LS1250", cat("a text of more than ", budget_.limits().text_bytes, " bytes")};
  budget_.spend(1 + static_cast<int64_t>(part.size()) / kBytesPerStep);
  text_ += part;
  return *this;
}

}  // namespace lockstep::chat
