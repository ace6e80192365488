#include "lockstep/arch/own_preset.h"

#include <algorithm>
#include <deque>

#include "lockstep/base/check.h"

namespace lockstep::arch {
namespace {

std::deque<OwnPreset>& presets() {
  static std::deque<OwnPreset> all;
  return all;
}

}  // namespace

void add_preset(const OwnPreset& preset) {
  LOCKSTEP_CHECK(std::ranges::count(preset_names(), preset.name) == 0, "two presets named ", preset.name);
  LOCKSTEP_CHECK(preset.section.layers && preset.section.hidden && preset.section.heads, "preset ", preset.name,
                 " has no layers, hidden or heads");
  presets().push_back(preset);
}

const OwnPreset* own_preset(std::string_view name) {
  const auto found = std::ranges::find(presets(), name, [](const OwnPreset& preset) { return std::string_view(preset.name); });
  return found == presets().end() ? nullptr : &*found;
}

std::vector<std::string> own_preset_names() {
  std::vector<std::string> names;
  for (const OwnPreset& preset : presets()) names.push_back(preset.name);
  return names;
}

}  // namespace lockstep::arch
