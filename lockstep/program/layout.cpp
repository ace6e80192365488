#include "lockstep/program/layout.h"

#include <algorithm>
#include <cmath>

#include "lockstep/base/check.h"
#include "lockstep/base/units.h"
#include "lockstep/config/check.h"

namespace lockstep::program {

int64_t Layout::num_microbatches() const {
  const int64_t per_pass = micro_batch * mesh.degree(mesh::kDataAxes);
  LOCKSTEP_CHECK_EQ(global_batch % per_pass, 0, "global batch ", global_batch, ", one pass over all ranks ", per_pass);
  return global_batch / per_pass;
}

int64_t Layout::element_size() const {
  return precision == config::Precision::kBf16 ? 2 : 4;
}

Layout make_layout(const config::RunConfig& config, const arch::ModelConfig& model, int world_size) {
  config::RunConfig resolved = config;
  resolved.model.max_seq_len = model.max_seq_len;
  config::check_layout(resolved, world_size);
  return {.model = model,
          .mesh = mesh::Mesh::data_parallel(config::data_parallel_size(config, world_size)),
          .global_batch = config.train.global_batch,
          .micro_batch = config.train.micro_batch,
          .seq_len = config.train.seq_len,
          .precision = config.train.precision,
          .data_parallel = config.parallel.data_parallel,
          .bucket_bytes = std::llround(config.parallel.bucket_mib * static_cast<double>(kMiB)),
          .overlap = config.parallel.overlap,
          .threads = std::max(1, config.train.threads)};
}

Layout reference_layout(const Layout& layout) {
  Layout reference = layout;
  reference.mesh = mesh::Mesh();
  reference.data_parallel = config::DataParallel::kRing;
  return reference;
}

std::string describe(const Layout& layout) {
  const auto several = [](int64_t count, const char* what, const char* plural) {
    return cat(count, " ", count == 1 ? what : plural);
  };
  const int data = layout.mesh.degree(mesh::kDataAxes);
  const char* kind = layout.data_parallel == config::DataParallel::kRing ? "ring" : "parameter server";
  return cat(data == 1 ? "1 rank" : cat("dp ", data, " (", kind, ")"), ", ",
             several(layout.num_microbatches(), "microbatch", "microbatches"), " x ",
             several(layout.micro_batch, "sequence", "sequences"), " x ", several(layout.seq_len, "token", "tokens"),
             ", ", layout.precision == config::Precision::kBf16 ? "bf16" : "fp32");
}

SampleRange microbatch_samples(const Layout& layout, int rank, int64_t microbatch) {
  const int64_t count = layout.num_microbatches();
  LOCKSTEP_CHECK(microbatch >= 0 && microbatch < count, "microbatch ", microbatch, " of ", count);
  const int64_t index = layout.mesh.group_rank(rank, mesh::kDataAxes) * count + microbatch;
  return {index * layout.micro_batch, (index + 1) * layout.micro_batch};
}

}  // namespace lockstep::program
