#include "lockstep/chat/builtins.h"

#include <algorithm>
#include <limits>

#include "lockstep/base/text.h"
#include "lockstep/chat/search.h"

namespace lockstep::chat {

const Value* ArgumentReader::next(std::string_view name) {
  if (position_ < arguments_.positional.size()) return &arguments_.positional[position_++];
  position_ = std::max(position_, arguments_.positional.size());
  for (const auto& [key, value] : arguments_.named) {
    if (key == name) return ++named_used_, &value;
  }
  return nullptr;
}

const Value& ArgumentReader::required(std::string_view name) {
  const Value* value = next(name);
  if (!value) fail(cat(function_, ": the argument '", name, "' is missing"));
  return *value;
}

int64_t ArgumentReader::integer(std::string_view name, int64_t otherwise) {
  const Value* value = next(name);
  if (!value || value->is_none()) return otherwise;
  if (!value->is_integer()) fail(cat(function_, ": '", name, "' is of type ", value->type(), ", not int"));
  return value->integer();
}

std::string ArgumentReader::string(std::string_view name, const std::string& otherwise) {
  const Value* value = next(name);
  if (!value || value->is_none()) return otherwise;
  if (!value->is_string()) fail(cat(function_, ": '", name, "' is of type ", value->type(), ", not str"));
  return value->string();
}

bool ArgumentReader::flag(std::string_view name, bool otherwise) {
  const Value* value = next(name);
  return value ? value->truthy() : otherwise;
}

void ArgumentReader::finish() const {
  if (position_ < arguments_.positional.size() || named_used_ < arguments_.named.size())
    fail(cat(function_, ": an argument too many, or one it does not take"));
}

Value iterate(Budget& budget, const Value& value) {
  if (value.is_list()) return value;
  std::vector<Value> items;
  if (value.is_undefined()) {
    // nothing
  } else if (value.is_string()) {
    for (const uint32_t point : budgeted_points(budget, value.string())) {
      items.push_back(budget.text(from_code_points(&point, 1)));
      if (items.size() % 1024 == 0) budget.room(static_cast<int64_t>(2 * items.size() * sizeof(Value)));
    }
  } else if (value.is_dict() && !value.is_namespace()) {
    for (const auto& [key, entry] : value.pairs()) items.push_back(key);
  } else {
    fail(cat("a value of type ", value.type(), " has no elements"));
  }
  return budget.list(std::move(items));
}

int64_t length_of(Budget& budget, const Value& value) {
  if (value.is_undefined()) return 0;
  if (value.is_string()) return static_cast<int64_t>(budgeted_points(budget, value.string()).size());
  if (value.is_list()) return static_cast<int64_t>(value.items().size());
  if (value.is_dict()) return static_cast<int64_t>(value.pairs().size());
  fail(cat("a value of type ", value.type(), " has no length"));
}

bool contains(Budget& budget, const Value& container, const Value& item) {
  if (container.is_undefined()) return false;
  if (container.is_string()) {
    if (!item.is_string()) fail(cat("'in' of a text needs a text, not ", item.type()));
    return find_text(budget, container.string(), item.string(), 0) != std::string::npos;
  }
  if (container.is_list())
    return std::any_of(container.items().begin(), container.items().end(), [&](const Value& entry) { return equal(budget, entry, item); });
  if (container.is_dict()) return find(budget, container, item) != nullptr;
  fail(cat("'in' of a value of type ", container.type()));
}

Value attribute(Budget& budget, const Value& operand, const std::string& name) {
  if (operand.is_undefined())
    fail(cat("'", operand.undefined_name(), "' is undefined, so it has no attribute '", name, "'"));
  if (operand.is_namespace()) {
    const Value* found = find(budget, operand, name);
    return found ? *found : budget.undefined(name);
  }
  Value method = find_method(budget, operand, name);
  if (!method.is_undefined()) return method;
  if (operand.is_dict()) {
    if (const Value* found = find(budget, operand, name)) return *found;
  }
  return budget.undefined(name);
}

namespace {

// The place that an index means; -1 = none.
int64_t place(int64_t index, int64_t size) {
  const int64_t at = index < 0 ? index + size : index;
  return at >= 0 && at < size ? at : -1;
}

struct Range {
  int64_t first, step, count;
};

// Python's slice.indices.
Range range_of(const Value& first, const Value& last, const Value& step, int64_t size) {
  const auto number = [](const Value& value, int64_t otherwise) {
    if (value.is_none() || value.is_undefined()) return otherwise;
    if (!value.is_integer()) fail(cat("a slice by a value of type ", value.type()));
    return value.integer();
  };
  const int64_t by = number(step, 1);
  if (by == 0) fail("a slice in steps of 0");
  const auto bound = [&](const Value& value, int64_t otherwise) {
    const int64_t low = by > 0 ? 0 : -1, high = by > 0 ? size : size - 1;
    int64_t at = number(value, otherwise);
    if (value.is_none() || value.is_undefined()) return at;
    if (at < 0) at = at < -size ? low : std::max(low, at + size);
    return std::min(at, high);
  };
  const int64_t begin = bound(first, by > 0 ? 0 : size - 1), end = bound(last, by > 0 ? size : -1);
  const int64_t distance = by > 0 ? end - begin : begin - end;
  if (distance <= 0) return {begin, by, 0};
  const uint64_t stride = by > 0 ? static_cast<uint64_t>(by) : ~static_cast<uint64_t>(by) + 1;
  return {begin, by, static_cast<int64_t>((static_cast<uint64_t>(distance) - 1) / stride) + 1};
}

}  // namespace

Value item(Budget& budget, const Value& operand, const Value& key) {
  if (operand.is_undefined()) fail(cat("'", operand.undefined_name(), "' is undefined, so it has no elements"));
  if (operand.is_dict()) {
    if (const Value* found = find(budget, operand, key)) return *found;
  } else if (key.is_integer() && operand.is_list()) {
    const int64_t at = place(key.integer(), length_of(budget, operand));
    if (at >= 0) return operand.items()[static_cast<size_t>(at)];
  } else if (key.is_integer() && operand.is_string()) {
    const std::vector<uint32_t> points = budgeted_points(budget, operand.string());
    const int64_t at = place(key.integer(), static_cast<int64_t>(points.size()));
    if (at >= 0) return budget.text(from_code_points(&points[static_cast<size_t>(at)], 1));
  }
  return key.is_string() ? attribute(budget, operand, key.string()) : budget.undefined(text_of(budget, key));
}

Value slice(Budget& budget, const Value& operand, const Value& first, const Value& last, const Value& step) {
  if (operand.is_string()) {
    const std::vector<uint32_t> points = budgeted_points(budget, operand.string());
    const Range range = range_of(first, last, step, static_cast<int64_t>(points.size()));
    std::string text;
    for (int64_t i = 0, at = range.first; i < range.count; ++i, at += i < range.count ? range.step : 0)
      append_utf8(text, points[static_cast<size_t>(at)]);
    return budget.text(std::move(text));
  }
  if (operand.is_undefined()) fail(cat("'", operand.undefined_name(), "' is undefined, so it has no slice"));
  if (!operand.is_list()) return budget.undefined("a slice");  // as Jinja
  const Range range = range_of(first, last, step, length_of(budget, operand));
  budget.room(range.count * static_cast<int64_t>(sizeof(Value)));
  std::vector<Value> items;
  items.reserve(static_cast<size_t>(range.count));
  for (int64_t i = 0, at = range.first; i < range.count; ++i, at += i < range.count ? range.step : 0)
    items.push_back(operand.items()[static_cast<size_t>(at)]);
  return budget.list(std::move(items), operand.type() == "tuple");
}

}  // namespace lockstep::chat
