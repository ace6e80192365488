#include "apps/lockstep/plan_fill.h"

#include <algorithm>

#include "apps/lockstep/plan_question.h"
#include "lockstep/base/text.h"
#include "lockstep/config/fields.h"

namespace lockstep::apps {
namespace {

constexpr size_t kComment = 32;  // column of the origins

// Keys of a candidate beside those that say a layout; and those that are said whatever their value is.
constexpr const char* kBeside[] = {"parallel.sequence_parallel", "train.micro_batch", "memory.recompute", "memory.offload"};
constexpr const char* kAlways[] = {"parallel.tp", "parallel.pp", "parallel.zero", "train.micro_batch", "memory.recompute"};

bool is_chosen(const std::string& key) {
  return std::ranges::count(layout_keys(), key) > 0 || std::ranges::count(kBeside, key) > 0;
}

}  // namespace

std::string filled_toml(const config::LoadedConfig& loaded, const config::RunConfig& chosen, const std::string& heading) {
  const config::RunConfig defaults;
  std::string text;
  for (const std::string& line : split(heading, '\n')) text += cat("# ", line, "\n");
  for (const config::Section& section : config::sections()) {
    std::string lines;
    for (const config::Field& field : section.fields) {
      const std::string value = field.print(chosen);
      const bool changed = value != field.print(loaded.config);
      const bool said = is_given(loaded, field.key()) || changed || std::ranges::count(kAlways, field.key()) > 0 ||
                        (is_chosen(field.key()) && value != field.print(defaults));
      if (value.empty() || !said) continue;
      const std::string origin = changed || is_chosen(field.key()) ? "lockstep plan" : loaded.origin.at(field.key());
      lines += cat(pad_right(cat(field.name, " = ", value), kComment), "  # ", origin, "\n");
    }
    if (!lines.empty()) text += cat("\n[", section.name, "]\n", lines);
  }
  return text;
}

}  // namespace lockstep::apps
