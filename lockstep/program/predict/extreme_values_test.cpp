// Values at and beyond the ends of what a field takes, one and two at a time: each gives a layout that can be planned, or a
// refusal. The fields come from the table, so that a new one is among them.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/config/fields.h"
#include "lockstep/program/passes/job.h"
#include "lockstep/program/passes/make_layout.h"
#include "lockstep/program/passes/passes.h"
#include "lockstep/program/predict/memory.h"
#include "lockstep/program/predict/traffic.h"

namespace lockstep::program {
namespace {

using config::Field;
using config::LoadedConfig;
using config::Value;

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
// What is planned in full; beyond it the sizes alone are worked out.
constexpr int64_t kPlanned = 3000;

std::vector<int64_t> extremes() {
  return {0, 1, -1, 2, 3, (1 << 16) - 1, 1 << 16, 1 << 20, (int64_t{1} << 31) - 1, int64_t{1} << 31, int64_t{1} << 32,
          int64_t{1} << 62, kMost, std::numeric_limits<int64_t>::min()};
}

// The fields that take a whole number.
std::vector<const Field*> number_fields() {
  std::vector<const Field*> found;
  for (const config::Section& section : config::sections())
    for (const Field& field : section.fields) {
      config::RunConfig config;
      const bool takes = !field.is_text && (!field.assign(config, Value(int64_t{1})) || !field.assign(config, Value(int64_t{0})));
      if (takes && field.default_text() != "true" && field.default_text() != "false") found.push_back(&field);
    }
  return found;
}

// Of those the ones that a product is made of: not times, rates and counts of steps.
bool is_size(const Field& field) {
  const bool counts = field.section == "model" || field.section == "parallel" || field.section == "memory" ||
                      field.name == "seq_len" || field.name.ends_with("_batch") || field.name == "threads";
  return counts && field.type.starts_with("integer");
}

enum class Outcome { kRefused, kSized, kPlanned };

// Everything that is said of a job before it starts.
Outcome plan(LoadedConfig loaded) {
  try {
    const int ranks = config::ranks_wanted(loaded.config);
    const Layout layout = layout_of(loaded, ranks);
    describe(layout);
    const int64_t actions = actions_of(loaded.config, layout.model, ranks);
    EXPECT_LE(actions, kMostActions);
    if (layout.model.layers <= 1000) layer_costs(layout, ranks - 1);
    if (actions > kPlanned || ranks > 64 || layout.model.layers > 64) return Outcome::kSized;
    const Program program = make_program(layout);
    predict_memory(layout, program, ranks - 1);
    predict_ledger(layout, program, ranks - 1);
    return Outcome::kPlanned;
  } catch (const Error& error) {
    EXPECT_FALSE(error.message().code.empty());
    EXPECT_FALSE(error.message().what.empty());
    return Outcome::kRefused;
  }
}

LoadedConfig base(const std::string& more = "") {
  return config::load_config_text("[model]\npreset = \"llama-test\"\n" + more, "run.toml");
}

// Nothing where the field refuses the value, which it must do with a code.
std::optional<LoadedConfig> with(LoadedConfig loaded, const Field& field, const Value& value) {
  const std::optional<config::Complaint> bad = field.assign(loaded.config, value);
  if (bad) {
    EXPECT_TRUE(bad->code.starts_with("LS10")) << bad->code;
    EXPECT_FALSE(bad->what.empty());
    return std::nullopt;
  }
  loaded.origin[field.key()] = "--" + field.key();
  return loaded;
}

TEST(ExtremeValues, TheFieldsAreThere) {
  const std::vector<const Field*> fields = number_fields();
  std::vector<std::string> keys;
  for (const Field* field : fields) keys.push_back(field->key());
  for (const char* key : {"model.layers", "train.micro_batch", "parallel.dp_shard", "parallel.bucket_mib", "memory.host_limit",
                          "checkpoint.every", "optimizer.lr", "parallel.layers_per_stage"})
    EXPECT_NE(std::find(keys.begin(), keys.end(), key), keys.end()) << key;
  EXPECT_GT(fields.size(), 40u);
}

TEST(ExtremeValues, OfEachFieldAlone) {
  int planned = 0, refused = 0;
  for (const Field* field : number_fields()) {
    for (const char* beside : {"", "[parallel]\npp = 2\ntp = 2\nzero = 1\n", "[train]\nseq_len = 8\n[memory]\nrecompute = \"full\"\n",
                               "[parallel]\ndp = 3\ndata_parallel = \"parameter_server\"\n"})
      for (const int64_t value : extremes()) {
        SCOPED_TRACE(cat(field->key(), " = ", value, " beside ", beside));
        const auto loaded = with(base(beside), *field, Value(value));
        const Outcome outcome = loaded ? plan(*loaded) : Outcome::kRefused;
        planned += outcome == Outcome::kPlanned;
        refused += outcome == Outcome::kRefused;
      }
  }
  EXPECT_GT(planned, 100);
  EXPECT_GT(refused, 100);
}

TEST(ExtremeValues, NumbersThatAreNotWhole) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const Field* field : number_fields())
    for (const double value : {0.0, -0.0, 5e-324, 1e-300, 0.5, 1e18, 1e19, 1e300, infinity, -infinity, std::nan("")}) {
      SCOPED_TRACE(cat(field->key(), " = ", value));
      if (const auto loaded = with(base(), *field, Value(value))) plan(*loaded);
    }
}

TEST(ExtremeValues, OfTwoSizesTogether) {
  std::vector<const Field*> sizes;
  for (const Field* field : number_fields())
    if (is_size(*field)) sizes.push_back(field);
  EXPECT_GT(sizes.size(), 20u);
  const std::vector<int64_t> values = {1, 1 << 16, (int64_t{1} << 31) - 1};
  const LoadedConfig plain = base();
  int tried = 0;
  for (size_t i = 0; i < sizes.size(); ++i)
    for (const int64_t first : values) {
      const auto one = with(plain, *sizes[i], Value(first));
      for (size_t k = i + 1; one && k < sizes.size(); ++k)
        for (const int64_t second : values) {
          SCOPED_TRACE(cat(sizes[i]->key(), " = ", first, ", ", sizes[k]->key(), " = ", second));
          if (const auto both = with(*one, *sizes[k], Value(second))) plan(*both), ++tried;
        }
    }
  EXPECT_GT(tried, 1000);
}

// Ranks that exchange rows, of which there is a bound of each kind.
const std::vector<std::string> kBounds = {"imbalance_limit = 1.5\n", "static_buffers = true\n", "scope = \"last_step\"\n"};
LoadedConfig with_experts(const std::string& bound, const std::string& model = "", const std::string& train = "seq_len = 8\n") {
  return config::load_config_text(cat("[model]\npreset = \"mixtral-test\"\nmax_seq_len = 2147483648\n", model, "[train]\n", train,
                                      "[parallel]\nep = 2\n[moe]\ncapacity_factor = 1.25\n", bound), "run.toml");
}

TEST(ExtremeValues, OfExperts) {
  int planned = 0, refused = 0;
  for (const std::string& bound : kBounds) {
    EXPECT_EQ(plan(with_experts(bound)), Outcome::kPlanned) << bound;
    for (const Field* field : number_fields()) {
      if (field->section != "moe" && !(is_size(*field) && field->section != "memory")) continue;
      for (const int64_t value : extremes()) {
        SCOPED_TRACE(cat(field->key(), " = ", value, " beside ", bound));
        const auto loaded = with(with_experts(bound), *field, Value(value));
        const Outcome outcome = loaded ? plan(*loaded) : Outcome::kRefused;
        planned += outcome == Outcome::kPlanned;
        refused += outcome == Outcome::kRefused;
      }
    }
  }
  EXPECT_GT(planned, 50);
  EXPECT_GT(refused, 50);
}

// Rows times experts times capacity pass 64 bits where the bytes do not.
TEST(ExtremeValues, OfRowsAndExpertsTogether) {
  int planned = 0;
  for (const std::string& bound : kBounds)
    for (const char* router : {"softmax", "expert_choice"})
      for (const int64_t experts : {8, 32})
        for (const int64_t seq_len : {int64_t{1} << 16, (int64_t{1} << 31) - 1})
          for (const int64_t micro_batch : {1, 32, 1 << 16}) {
            const std::string model = cat("layers = 2\nexperts = ", experts, "\nrouter = \"", router, "\"\n");
            const std::string train = cat("seq_len = ", seq_len, "\nmicro_batch = ", micro_batch, "\nglobal_batch = ", 2 * micro_batch, "\n");
            SCOPED_TRACE(cat(bound, model, train));
            planned += plan(with_experts(bound, model, train)) == Outcome::kPlanned;
          }
  EXPECT_GT(planned, 10);
}

struct Reported {
  const char* flags;
  const char* says;
};

TEST(ExtremeValues, WhatEndedTheProcess) {
  const auto refusal = [](const std::vector<config::Override>& overrides) -> std::string {
    try {
      LoadedConfig loaded = config::load_config({}, overrides);
      layout_of(loaded, config::ranks_wanted(loaded.config));
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  const config::Override model{"model.preset", "gpt2-test"};
  EXPECT_NE(refusal({model, {"parallel.dp_replicate", "65536"}, {"parallel.dp_shard", "65536"}}).find("4294967296"), std::string::npos);
  EXPECT_NE(refusal({model, {"train.micro_batch", "4611686018427387904"}}).find("LS1044"), std::string::npos);
  const std::string long_step = refusal({model, {"train.global_batch", "100000000"}});
  EXPECT_NE(long_step.find("F and B of 4 layers x 12500000 microbatches = 100000000 actions, more than 8388608"),
            std::string::npos) << long_step;
  EXPECT_NE(long_step.find("use micro_batch 100 or 125, or global_batch 8388608"), std::string::npos) << long_step;
}

}  // namespace
}  // namespace lockstep::program
