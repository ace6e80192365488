// Everything a step program is built from: the model, the mesh and how the batch is cut. Derived once from the run
// configuration; the same for every rank.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/arch/cost.h"
#include "lockstep/arch/model_config.h"
#include "lockstep/arch/params.h"
#include "lockstep/config/run_config.h"
#include "lockstep/mesh/mesh.h"

namespace lockstep::program {

inline constexpr int kServerRank = 0;  // of the parameter server, within the data group

struct Layout {
  arch::ModelConfig model;
  mesh::Mesh mesh;
  int64_t global_batch = 1;      // sequences per step
  int64_t micro_batch = 1;       // sequences per microbatch and rank
  int64_t seq_len = 1;
  config::Precision precision = config::Precision::kFp32;
  config::DataParallel data_parallel = config::DataParallel::kRing;
  int64_t bucket_bytes = 25 << 20;
  // Over the axis tp: norms, dropout and sums act on 1/tp of the rows. Means nothing for tp 1.
  bool sequence_parallel = true;
  bool overlap = true;  // reduce a bucket as soon as it is full, otherwise all after the last backward; and sum the
                        // gradients of inputs over tp beside the weight gradients
  int threads = 1;               // compute threads of a rank (train.threads; 1 where it says 0 = by the machine): kernels have
                                 // a scratch area per thread

  int64_t num_microbatches() const;  // global_batch / (micro_batch * data degree)
  int64_t element_size() const;      // of the compute copy: 4 fp32, 2 bf16
  arch::TensorShard tensor_shard(int rank) const;
  std::vector<arch::ParamSpec> param_table(int rank) const;  // with the pieces of `rank`
  bool server_mode() const;  // a parameter server among several data-parallel ranks
  // The rank holds optimizer state: everyone, but of a parameter server's group the server alone.
  bool owns_optimizer(int rank) const;
};

// ConfigError LS1101 (all problems at once) where the configuration does not fit `world_size` ranks.
Layout make_layout(const config::RunConfig& config, const arch::ModelConfig& model, int world_size);
// The axes over which one copy of the model is trained: they agree on loss and norm.
inline constexpr std::array<mesh::Axis, 3> kReplicaAxes = {mesh::Axis::kDpReplicate, mesh::Axis::kDpShard,
                                                           mesh::Axis::kTp};
inline constexpr std::array<mesh::Axis, 1> kTensorAxis = {mesh::Axis::kTp};

// The layout of the one-rank twin: same model, global batch and precision on one rank.
Layout reference_layout(const Layout& layout);
// "dp 2 (ring), 2 microbatches x 4 sequences x 256 tokens, fp32".
std::string describe(const Layout& layout);

// Global sequence indices [begin, end) of microbatch `microbatch` on `rank`: rank r takes the r-th contiguous part of the
// global batch, its microbatches in order.
struct SampleRange {
  int64_t begin = 0;
  int64_t end = 0;
};
SampleRange microbatch_samples(const Layout& layout, int rank, int64_t microbatch);

}  // namespace lockstep::program
