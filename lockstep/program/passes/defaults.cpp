#include "lockstep/program/passes/job.h"

#include <algorithm>

#include "lockstep/base/checked.h"
#include "lockstep/config/check.h"
#include "lockstep/config/fields.h"

namespace lockstep::program {
namespace {

using config::LoadedConfig;
using config::TrainSection;

bool is_default(const LoadedConfig& loaded, const char* key) {
  const auto found = loaded.origin.find(key);
  return found != loaded.origin.end() && found->second.starts_with("default");
}

void settle(LoadedConfig& loaded, const char* key, int64_t& field, int64_t value, int64_t plain, const char* why) {
  field = value;
  loaded.origin[key] = value == plain ? "default" : why;
}

void settle_micro_batch(LoadedConfig& loaded, int64_t data_ranks) {
  TrainSection& train = loaded.config.train;
  const int64_t plain = TrainSection{}.micro_batch, parts = saturating_mul(data_ranks, config::microbatch_group(loaded.config));
  if (train.global_batch % parts != 0) return settle(loaded, "train.micro_batch", train.micro_batch, plain, plain, "");
  int64_t size = plain;
  while (train.global_batch / parts % size != 0) --size;
  settle(loaded, "train.micro_batch", train.micro_batch, size, plain, "default: at most 8");
}

void settle_global_batch(LoadedConfig& loaded, int world_size) {
  TrainSection& train = loaded.config.train;
  const int64_t plain = TrainSection{}.global_batch, unit = config::batch_unit(loaded.config, world_size);
  const bool fits = unit < config::kSizesBelow - plain;  // else the layout is refused
  const int64_t next = fits ? (plain + unit - 1) / unit * unit : plain;
  settle(loaded, "train.global_batch", train.global_batch, next, plain, "default: 32 or the next that fits");
}

}  // namespace

void settle_defaults(LoadedConfig& loaded, const arch::ModelConfig& model, int world_size) {
  TrainSection& train = loaded.config.train;
  if (is_default(loaded, "train.seq_len")) {
    const int64_t plain = TrainSection{}.seq_len;
    settle(loaded, "train.seq_len", train.seq_len, std::min(plain, model.max_seq_len), plain, "default: what the model can read");
  }
  const bool batch_is_free = is_default(loaded, "train.global_batch");
  if (is_default(loaded, "train.micro_batch")) {
    if (batch_is_free) train.micro_batch = TrainSection{}.micro_batch;
    else settle_micro_batch(loaded, config::data_parallel_size(loaded.config, world_size));
  }
  if (batch_is_free) settle_global_batch(loaded, world_size);
}

void settle_defaults(LoadedConfig& loaded, int world_size) {
  settle_defaults(loaded, arch::resolve_model(loaded.config.model, 1), world_size);
}

}  // namespace lockstep::program
