#include "lockstep/chat/printing.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "lockstep/base/text.h"

namespace lockstep::chat {
namespace {

void add_quoted(TextBuilder& out, const std::string& text) {
  const bool single = text.find('\'') == std::string::npos || text.find('"') != std::string::npos;
  const char quote = single ? '\'' : '"';
  out.add(quote);
  for (const char c : text) {
    if (c == quote || c == '\\') {
      out.add('\\').add(c);
    } else if (c == '\n') {
      out.add("\\n");
    } else if (c == '\t') {
      out.add("\\t");
    } else if (c == '\r') {
      out.add("\\r");
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\x%02x", static_cast<unsigned char>(c));
      out.add(escape);
    } else {
      out.add(c);
    }
  }
  out.add(quote);
}

// str() of what is no list and no dictionary.
std::string plain_text(const Value& value) {
  if (value.is_undefined()) return "";
  if (value.is_none()) return "None";
  if (const bool* flag = value.get<bool>()) return *flag ? "True" : "False";
  if (const int64_t* integer = value.get<int64_t>()) return std::to_string(*integer);
  if (const double* number = value.get<double>()) return float_text(*number);
  if (const auto* function = value.get<Value::Function>()) return cat("<function ", (*function)->name, ">");
  return value.string();
}

// `depth`: a namespace may hold itself.
void add_repr(Budget& budget, TextBuilder& out, const Value& value, int depth) {
  budget.check_depth(depth);
  budget.spend(1);
  if (value.is_string()) return add_quoted(out, value.string());
  if (value.is_undefined()) return void(out.add("Undefined"));
  bool first = true;
  const auto separate = [&] {
    if (!std::exchange(first, false)) out.add(", ");
  };
  if (const auto* list = value.get<Value::List>()) {
    const bool tuple = (*list)->tuple;
    out.add(tuple ? '(' : '[');
    for (const Value& item : (*list)->items) {
      separate();
      add_repr(budget, out, item, depth + 1);
    }
    out.add(!tuple ? "]" : (*list)->items.size() == 1 ? ",)" : ")");
  } else if (value.is_dict()) {
    out.add(value.is_namespace() ? "<Namespace {" : "{");
    for (const auto& [key, item] : value.pairs()) {
      separate();
      add_repr(budget, out, key, depth + 1);
      out.add(": ");
      add_repr(budget, out, item, depth + 1);
    }
    out.add(value.is_namespace() ? "}>" : "}");
  } else {
    out.add(plain_text(value));
  }
}

void append_code_unit(std::string& out, unsigned unit) {
  char escape[8];
  std::snprintf(escape, sizeof escape, "\\u%04x", unit);
  out += escape;
}

std::string json_string(const std::string& text, bool ascii) {
  // nlohmann's escapes are json.dumps': two letters where there are, else \u00xx; malformed UTF-8 becomes U+FFFD.
  const std::string plain = Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
  if (!ascii) return plain;
  std::string out;
  for (size_t i = 0; i < plain.size();) {
    const auto lead = static_cast<unsigned char>(plain[i]);
    const size_t length = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    if (length == 1) {
      out += plain[i];
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
  JsonWriter(Budget& budget, const JsonStyle& style) : budget_(budget), style_(style), out_(budget) {}

  std::string take() { return out_.take(); }

  void write(const Value& value, int depth) {
    budget_.check_depth(depth);
    if (value.is_none()) {
      out_.add("null");
    } else if (const bool* flag = value.get<bool>()) {
      out_.add(*flag ? "true" : "false");
    } else if (const double* number = value.get<double>()) {
      out_.add(std::isnan(*number) ? "NaN" : !std::isinf(*number) ? float_text(*number) : *number < 0 ? "-Infinity" : "Infinity");
    } else if (value.is_integer()) {
      out_.add(plain_text(value));
    } else if (value.is_string()) {
      write_string(value.string());
    } else if (value.is_list()) {
      write_list(value, depth);
    } else if (value.is_dict() && !value.is_namespace()) {
      write_dict(value, depth);
    } else {
      fail(cat("tojson: a value of type ", value.type(), " is no JSON"));
    }
  }

 private:
  void write_string(const std::string& text) {
    budget_.spend(static_cast<int64_t>(text.size()) / 4);
    out_.add(json_string(text, style_.ascii));
  }

  void write_list(const Value& value, int depth) {
    out_.add('[');
    bool first = true;
    for (const Value& item : value.items()) {
      separate(first, depth + 1);
      write(item, depth + 1);
    }
    if (!first) line(depth);
    out_.add(']');
  }

  void write_dict(const Value& value, int depth) {
    std::vector<std::pair<Value, Value>> pairs = value.pairs();
    if (style_.sort_keys)
      std::stable_sort(pairs.begin(), pairs.end(), [&](const auto& a, const auto& b) { return compare(budget_, a.first, b.first) < 0; });
    out_.add('{');
    bool first = true;
    for (const auto& [key, item] : pairs) {
      separate(first, depth + 1);
      write_string(key_text(key));
      out_.add(style_.key_separator.empty() ? ": " : style_.key_separator);
      write(item, depth + 1);
    }
    if (!first) line(depth);
    out_.add('}');
  }

  static std::string key_text(const Value& key) {
    if (key.is_none()) return "null";
    if (const bool* flag = key.get<bool>()) return *flag ? "true" : "false";
    if (!key.is_string() && !key.is_number()) fail("tojson: a key that is no text");
    return plain_text(key);
  }

  void separate(bool& first, int depth) {
    if (!std::exchange(first, false))
      out_.add(!style_.item_separator.empty() ? style_.item_separator : style_.indent >= 0 ? "," : ", ");
    line(depth);
  }

  void line(int depth) {
    if (style_.indent >= 0) out_.add("\n").add(std::string(static_cast<size_t>(style_.indent) * static_cast<size_t>(depth), ' '));
  }

  Budget& budget_;
  const JsonStyle& style_;
  TextBuilder out_;
};

}  // namespace

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

std::string text_of(Budget& budget, const Value& value) {
  TextBuilder out(budget);
  if (value.is_list() || value.is_dict())
    add_repr(budget, out, value, 0);
  else
    out.add(value.is_string() ? value.string() : plain_text(value));
  return out.take();
}

std::string to_json(Budget& budget, const Value& value, const JsonStyle& style) {
  JsonWriter writer(budget, style);
  writer.write(value, 0);
  return writer.take();
}

}  // namespace lockstep::chat
