#include "lockstep/train/changes.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/config/fields.h"
#include "lockstep/config/load.h"
#include "lockstep/optim/optimizer.h"

namespace lockstep::train {
namespace {

constexpr std::array<std::string_view, 6> kOfTrain = {"steps", "seq_len", "global_batch", "micro_batch", "seed", "precision"};
constexpr std::array<std::string_view, 5> kOfSchedule = {"optimizer.lr", "optimizer.min_lr", "optimizer.warmup_steps",
                                                         "optimizer.schedule", "train.steps"};

constexpr std::string_view kOfExperts = "moe";  // settings have of it what is not the default

template <size_t kSize>
bool is_one_of(std::string_view name, const std::array<std::string_view, kSize>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::vector<const config::Field*> compared_fields() {
  std::vector<const config::Field*> fields;
  for (const config::Section& section : config::sections()) {
    for (const config::Field& field : section.fields) {
      const bool whole = section.name == "optimizer" || section.name == kOfExperts;
      if (whole || (section.name == "train" && is_one_of(field.name, kOfTrain))) fields.push_back(&field);
    }
  }
  return fields;
}

// The saved settings as a configuration; nothing where they are of a version that has others.
std::optional<config::RunConfig> configuration_of(const Json& settings) {
  std::map<std::string, std::string> sections;
  for (const config::Field* field : compared_fields()) {
    if (field->section == kOfExperts) continue;  // of no schedule
    const std::string value = settings.contains(field->key()) ? settings[field->key()].get<std::string>() : "";
    if (!value.empty()) sections[field->section] += cat(field->name, " = ", value, "\n");  // else unset
  }
  std::string text;
  for (const auto& [section, lines] : sections) text += cat("[", section, "]\n", lines);
  try {
    return config::load_config_text(text, "checkpoint").config;
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::string rate(const config::RunConfig& config, int64_t step) {
  return number_text(static_cast<float>(optim::learning_rate(config.optimizer, step, config.train.steps)));
}

std::string rates(const config::RunConfig& before, const config::RunConfig& now, int64_t step) {
  std::vector<std::string> parts;
  if (step > 0) parts.push_back(cat(rate(before, step - 1), " at step ", step));
  if (step < now.train.steps) {
    parts.push_back(cat(rate(now, step), " at step ", step + 1));
    if (step + 1 < now.train.steps) parts.push_back(cat(rate(now, now.train.steps - 1), " at step ", now.train.steps));
  }
  return join(parts, " -> ");
}

}  // namespace

Json settings_of(const config::RunConfig& config) {
  Json settings = Json::object();
  for (const config::Field* field : compared_fields()) {
    const std::string value = field->print(config);
    if (field->section != kOfExperts || value != field->default_text()) settings[field->key()] = value;
  }
  return settings;
}

std::vector<std::pair<std::string, std::string>> changes(const checkpoint::TrainState& saved, const checkpoint::TrainState& now,
                                                         const config::RunConfig& config) {
  std::vector<std::pair<std::string, std::string>> found;
  const auto compare = [&found](const std::string& name, const std::string& before, const std::string& after) {
    if (before != after) found.emplace_back(name, cat(before, " -> ", after));
    return before != after;
  };
  bool other_schedule = false;
  for (const config::Field* field : compared_fields()) {
    const auto found_before = saved.settings.find(field->key());
    const bool known = found_before != saved.settings.end() && found_before->is_string();
    if (!known && field->section != kOfExperts) continue;
    const std::string before = known ? found_before->get<std::string>() : field->default_text();
    const bool differs = compare(field->key(), before, field->print(config));
    other_schedule = other_schedule || (differs && is_one_of(field->key(), kOfSchedule));
  }
  compare("ranks", cat(saved.world_size), cat(now.world_size));
  compare("layout", saved.layout, now.layout);
  if (saved.data.is_object()) {
    for (const auto& [key, value] : saved.data.items()) {
      if (config::find_field("train", key) != nullptr) continue;  // seed and seq_len: among the settings
      compare(cat("data.", key), value.dump(), now.data.value(key, Json()).dump());
    }
  }
  if (!other_schedule) return found;
  if (const auto before = configuration_of(saved.settings))
    found.emplace_back("learning rate", rates(*before, config, saved.step));
  return found;
}

}  // namespace lockstep::train
