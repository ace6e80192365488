#include "lockstep/chat/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "lockstep/base/text.h"

namespace lockstep::chat {
namespace {

constexpr int kDeepest = 64;  // of nested lists and dictionaries in a text

std::string quoted(const std::string& text) {
  const bool single = text.find('\'') == std::string::npos || text.find('"') != std::string::npos;
  const char quote = single ? '\'' : '"';
  std::string out(1, quote);
  for (const char c : text) {
    if (c == quote || c == '\\') {
      out += {'\\', c};
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\r') {
      out += "\\r";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\x%02x", static_cast<unsigned char>(c));
      out += escape;
    } else {
      out += c;
    }
  }
  return out + quote;
}

std::string repr_of(const Value& value, int depth) {
  if (depth > kDeepest) fail("lists and dictionaries are nested too deep to be printed");
  if (value.is_string()) return quoted(value.string());
  std::string out;
  if (const auto* list = value.get<Value::List>()) {
    const bool tuple = (*list)->tuple;
    for (const Value& item : (*list)->items) out += (out.empty() ? "" : ", ") + repr_of(item, depth + 1);
    if (tuple) return "(" + out + ((*list)->items.size() == 1 ? ",)" : ")");
    return "[" + out + "]";
  }
  if (value.is_dict()) {
    for (const auto& [key, item] : value.pairs())
      out += (out.empty() ? "" : ", ") + repr_of(key, depth + 1) + ": " + repr_of(item, depth + 1);
    return "{" + out + "}";
  }
  if (value.is_undefined()) return "Undefined";
  return text_of(value);
}

void append_code_unit(std::string& out, unsigned unit) {
  char escape[8];
  std::snprintf(escape, sizeof escape, "\\u%04x", unit);
  out += escape;
}

std::string json_string(const std::string& text, bool ascii) {
  // nlohmann's escapes are json.dumps': two letters where there are, else \u00xx; malformed UTF-8 becomes U+FFFD.
  const std::string plain = Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string out;
  for (size_t i = 0; i < plain.size();) {
    const auto lead = static_cast<unsigned char>(plain[i]);
    const size_t length = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    if (lead == 0x7f || !ascii || length == 1) {
      if (lead == 0x7f && ascii) out += plain[i]; else out.append(plain, i, length);
    } else {
      unsigned point = lead & (0xffu >> (length + 1));
      for (size_t k = 1; k < length; ++k) point = point << 6 | (static_cast<unsigned char>(plain[i + k]) & 0x3fu);
      if (point >= 0x10000) {
        append_code_unit(out, 0xd800 + ((point - 0x10000) >> 10));
        append_code_unit(out, 0xdc00 + ((point - 0x10000) & 0x3ff));
      } else {
        append_code_unit(out, point);
      }
    }
    i += length;
  }
  return out;
}

class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {}

  std::string write(const Value& value, int depth) const {
    if (depth > kDeepest) fail("lists and dictionaries are nested too deep for tojson");
    if (value.is_none()) return "null";
    if (const bool* flag = value.get<bool>()) return *flag ? "true" : "false";
    if (const double* number = value.get<double>()) {
      if (std::isnan(*number)) return "NaN";
      if (std::isinf(*number)) return *number < 0 ? "-Infinity" : "Infinity";
      return float_text(*number);
    }
    if (value.is_integer()) return text_of(value);
    if (value.is_string()) return json_string(value.string(), style_.ascii);
    std::vector<std::string> parts;
    if (value.is_list()) {
      for (const Value& item : value.items()) parts.push_back(write(item, depth + 1));
      return enclose('[', parts, ']', depth);
    }
    if (value.is_dict()) {
      std::vector<std::pair<Value, Value>> pairs = value.pairs();
      if (style_.sort_keys)
        std::stable_sort(pairs.begin(), pairs.end(), [](const auto& a, const auto& b) { return compare(a.first, b.first) < 0; });
      const std::string separator = style_.key_separator.empty() ? ": " : style_.key_separator;
      for (const auto& [key, item] : pairs)
        parts.push_back(json_string(key_text(key), style_.ascii) + separator + write(item, depth + 1));
      return enclose('{', parts, '}', depth);
    }
    fail(cat("tojson: a value of type ", value.type(), " is no JSON"));
  }

 private:
  static std::string key_text(const Value& key) {
    if (key.is_none()) return "null";
    if (const bool* flag = key.get<bool>()) return *flag ? "true" : "false";
    if (!key.is_string() && !key.is_number()) fail("tojson: a key that is no text");
    return text_of(key);
  }

  std::string enclose(char open, const std::vector<std::string>& parts, char close, int depth) const {
    const bool lines = style_.indent >= 0 && !parts.empty();
    const auto line = [&](int level) {
      return lines ? "\n" + std::string(static_cast<size_t>(style_.indent * level), ' ') : std::string();
    };
    std::string separator = style_.item_separator;
    if (separator.empty()) separator = lines ? "," : ", ";
    return open + line(depth + 1) + join(parts, separator + line(depth + 1)) + line(depth) + close;
  }

  const JsonStyle& style_;
};

}  // namespace

void fail(const std::string& what) { throw TemplateFailure{"LS1248", what}; }

Value Value::list(std::vector<Value> items, bool tuple) {
  return Value(std::make_shared<Sequence>(Sequence{.items = std::move(items), .tuple = tuple}));
}

Value Value::dict(std::vector<std::pair<Value, Value>> items) {
  return Value(std::make_shared<Mapping>(Mapping{.items = std::move(items)}));
}

const std::vector<Value>& Value::items() const { return std::get<List>(data_)->items; }
std::vector<std::pair<Value, Value>>& Value::pairs() const { return std::get<Dict>(data_)->items; }

const Value* Value::find(const Value& key) const {
  for (const auto& [name, value] : pairs()) {
    if (equal(name, key)) return &value;
  }
  return nullptr;
}

int64_t Value::integer() const {
  const bool* flag = get<bool>();
  return flag ? *flag : std::get<int64_t>(data_);
}

double Value::number() const {
  const double* real = get<double>();
  return real ? *real : static_cast<double>(integer());
}

bool Value::truthy() const {
  if (is_undefined() || is_none()) return false;
  if (is_number()) return number() != 0;
  if (is_string()) return !string().empty();
  if (is_list()) return !items().empty();
  if (const Dict* dict = get<Dict>()) return (*dict)->is_namespace || !(*dict)->items.empty();
  return true;
}

std::string Value::type() const {
  if (is_undefined()) return "undefined";
  if (is_none()) return "NoneType";
  if (get<bool>()) return "bool";
  if (get<int64_t>()) return "int";
  if (get<double>()) return "float";
  if (is_string()) return "str";
  if (const List* list = get<List>()) return (*list)->tuple ? "tuple" : "list";
  if (const Dict* dict = get<Dict>()) return (*dict)->is_namespace ? "namespace" : "dict";
  return "function";
}

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_integer() && b.is_integer()) return a.integer() == b.integer();
    return a.number() == b.number();
  }
  if (a.is_string() && b.is_string()) return a.string() == b.string();
  if (a.is_list() && b.is_list())
    return a.type() == b.type() && std::equal(a.items().begin(), a.items().end(), b.items().begin(), b.items().end(), equal);
  if (a.is_dict() && b.is_dict()) {
    if (a.pairs().size() != b.pairs().size()) return false;
    return std::all_of(a.pairs().begin(), a.pairs().end(), [&](const auto& pair) {
      const Value* other = b.find(pair.first);
      return other && equal(pair.second, *other);
    });
  }
  if (const auto* function = a.get<Value::Function>()) return b.get<Value::Function>() && *function == *b.get<Value::Function>();
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

int compare(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_integer() && b.is_integer()) return a.integer() < b.integer() ? -1 : a.integer() > b.integer();
    return a.number() < b.number() ? -1 : a.number() > b.number();
  }
  if (a.is_string() && b.is_string()) return a.string().compare(b.string());  // UTF-8 sorts as code points do
  if (a.is_list() && b.is_list()) {
    for (size_t i = 0; i < std::min(a.items().size(), b.items().size()); ++i) {
      if (!equal(a.items()[i], b.items()[i])) return compare(a.items()[i], b.items()[i]);
    }
    return a.items().size() < b.items().size() ? -1 : a.items().size() > b.items().size();
  }
  fail(cat("values of type ", a.type(), " and ", b.type(), " have no order"));
}

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char digits[40];
  const auto end = std::to_chars(digits, digits + sizeof digits, value, std::chars_format::scientific).ptr;
  const std::string scientific(digits, end);
  const size_t e = scientific.find('e');
  const int exponent = std::atoi(scientific.c_str() + e + 1);
  if (exponent < -4 || exponent >= 16) return scientific;
  const auto fixed_end = std::to_chars(digits, digits + sizeof digits, value, std::chars_format::fixed).ptr;
  std::string fixed(digits, fixed_end);
  return fixed.find('.') == std::string::npos ? fixed + ".0" : fixed;
}

std::string text_of(const Value& value) {
  if (value.is_undefined()) return "";
  if (value.is_none()) return "None";
  if (const bool* flag = value.get<bool>()) return *flag ? "True" : "False";
  if (const int64_t* integer = value.get<int64_t>()) return std::to_string(*integer);
  if (const double* number = value.get<double>()) return float_text(*number);
  if (value.is_string()) return value.string();
  if (const auto* function = value.get<Value::Function>()) return cat("<function ", (*function)->name, ">");
  return repr_of(value, 0);
}

std::string repr(const Value& value) { return repr_of(value, 0); }

Value from_json(const OrderedJson& json) {
  switch (json.type()) {
    case OrderedJson::value_t::boolean: return Value(json.get<bool>());
    case OrderedJson::value_t::number_integer: return Value(json.get<int64_t>());
    case OrderedJson::value_t::number_unsigned: return Value(static_cast<int64_t>(json.get<uint64_t>()));
    case OrderedJson::value_t::number_float: return Value(json.get<double>());
    case OrderedJson::value_t::string: return Value(json.get<std::string>());
    case OrderedJson::value_t::array: {
      std::vector<Value> items;
      for (const OrderedJson& item : json) items.push_back(from_json(item));
      return Value::list(std::move(items));
    }
    case OrderedJson::value_t::object: {
      std::vector<std::pair<Value, Value>> items;
      for (const auto& [key, item] : json.items()) items.emplace_back(Value(key), from_json(item));
      return Value::dict(std::move(items));
    }
    default: return Value(None{});
  }
}

std::string to_json(const Value& value, const JsonStyle& style) { return JsonWriter(style).write(value, 0); }

}  // namespace lockstep::chat
