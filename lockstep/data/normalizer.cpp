#include "lockstep/data/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <map>

#include "lockstep/base/check.h"
#include "lockstep/base/text.h"
#include "lockstep/data/utf8.h"

namespace lockstep::data {
namespace {

// Code points that NFC leaves alone among themselves: those below the combining marks, ideographs, Hangul syllables.
bool is_inert(char32_t c) {
  return c < 0x300 || (c >= 0x3400 && c <= 0x9FFF) || (c >= 0xAC00 && c <= 0xD7A3) || (c >= 0x2010 && c <= 0x2027);
}

bool is_nfc_at_a_glance(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    at = skip_ascii(text, at);
    if (at < text.size() && !is_inert(decode_utf8(text, at))) return false;
  }
  return true;
}

int combining_class(utf8proc_int32_t code_point) {
  return utf8proc_get_property(code_point)->combining_class;
}

// utf8proc's own ordering of marks takes time quadratic in their number; this one sorts.
void order_marks(std::vector<utf8proc_int32_t>& text) {
  for (auto begin = text.begin(); begin != text.end();) {
    if (combining_class(*begin) == 0) {
      ++begin;
      continue;
    }
    const auto end = std::find_if(begin, text.end(), [](auto c) { return combining_class(c) == 0; });
    std::stable_sort(begin, end, [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    begin = end;
  }
}

}  // namespace

std::string to_normal_form(std::string_view text, NormalForm form) {
  const bool compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  if (form == NormalForm::kNfc && is_nfc_at_a_glance(text)) return std::string(text);
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                                      (compatible ? UTF8PROC_COMPAT : 0));
  std::vector<utf8proc_int32_t> points;
  points.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const auto code_point = static_cast<utf8proc_int32_t>(decode_utf8(text, at));
    std::array<utf8proc_int32_t, 32> parts;  // the longest decomposition has 18
    int boundary = 0;
    const auto count = utf8proc_decompose_char(code_point, parts.data(), parts.size(), options, &boundary);
    LOCKSTEP_CHECK(count >= 0 && count <= static_cast<utf8proc_ssize_t>(parts.size()), "a decomposition of ", count);
    points.insert(points.end(), parts.begin(), parts.begin() + count);
  }
  order_marks(points);
  size_t count = points.size();
  if (form == NormalForm::kNfc || form == NormalForm::kNfkc) {
    const auto compose = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    const auto left = utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(count), compose);
    LOCKSTEP_CHECK(left >= 0, "utf8proc: ", utf8proc_errmsg(left));
    count = static_cast<size_t>(left);
  }
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < count; ++i) append_utf8(static_cast<char32_t>(points[i]), out);
  return out;
}

Normalizer::Normalizer(const Component& component) {
  add(component);
}

void Normalizer::add(const Component& component) {
  static const std::map<std::string, NormalForm> kForms = {{"NFC", NormalForm::kNfc},
                                                           {"NFD", NormalForm::kNfd},
                                                           {"NFKC", NormalForm::kNfkc},
                                                           {"NFKD", NormalForm::kNfkd}};
  const std::string type = component.type();
  if (const auto form = kForms.find(type); form != kForms.end()) {
    component.allow_only({"type"});
    steps_.push_back({.form = form->second});
  } else if (type == "Prepend") {
    component.allow_only({"type", "prepend"});
    steps_.push_back({.text = component.text("prepend")});
  } else if (type == "Replace") {
    component.allow_only({"type", "pattern", "content"});
    steps_.push_back({.pattern = component.pattern("pattern"), .text = component.text("content")});
  } else if (type == "Sequence") {
    component.allow_only({"type", "normalizers"});
    for (const Component& part : component.list("normalizers")) add(part);
  } else {
    component.unsupported(cat("has type ", type));
  }
}

std::string Normalizer::apply(std::string_view text) const {
  std::string now(text);
  for (const Step& step : steps_) {
    if (step.form) {
      now = to_normal_form(now, *step.form);
    } else if (step.pattern) {
      now = replace_all(*step.pattern, now, step.text);
    } else if (!now.empty()) {
      now.insert(0, step.text);
    }
  }
  return now;
}

}  // namespace lockstep::data
