// The local sizes that layer descriptions are made from: inside arch/ alone.
#pragma once

#include <algorithm>

#include "lockstep/arch/cost.h"

namespace lockstep::arch {

// The sizes of one microbatch of one layer, in bytes where not said otherwise.
struct Sizes {
  Sizes(const ModelConfig& m, const CostInput& in)
      : model(part_of(m, in.tensor)),
        vocab_size(m.vocab_size),
        input(in),
        tokens(in.batch * in.seq_len),
        sequence(in.tensor.size > 1 && in.tensor.sequence_parallel),
        rows(sequence ? mesh::padded_part(tokens, in.tensor.size) : tokens),
        fp32(in.element_size == 4),
        q_width(model.heads * m.head_size),
        qkv_width(q_width + 2 * model.kv_heads * m.head_size),
        up_width(m.traits().gated_mlp ? 2 * model.ffn : model.ffn),
        hidden(rows * m.hidden * in.element_size),
        whole(sequence ? rows * in.tensor.size * m.hidden * in.element_size : 0),
        uneven(sequence && tokens % in.tensor.size != 0),
        q(activations(q_width)),
        qkv(activations(qkv_width)),
        up(activations(up_width)),
        ffn(activations(model.ffn)),
        mask(m.dropout > 0 ? rows * m.hidden : 0) {}

  int64_t activations(int64_t width) const { return tokens * width * input.element_size; }

  // The model whose layers are what this rank holds of them.
  static ModelConfig part_of(ModelConfig m, const TensorShard& shard) {
    m.heads /= shard.size;
    m.kv_heads = std::max<int64_t>(1, m.kv_heads / shard.size);
    m.ffn = mesh::shard_range(m.ffn, shard.size, shard.rank).size();
    m.vocab_size = mesh::shard_range(m.vocab_size, shard.size, shard.rank).size();
    return m;
  }

  const ModelConfig model;
  const int64_t vocab_size;  // of all ranks
  const CostInput& input;
  int64_t tokens;  // M = B S
  bool sequence;   // norms, dropout and sums act on `rows` of them
  int64_t rows;    // the last ranks may have fewer, in buffers of so many
  bool fp32;
  int64_t q_width;    // elements a token
  int64_t qkv_width;  // elements a token
  int64_t up_width;   // elements a token
  int64_t hidden;     // of the rows here
  int64_t whole;      // with sequence parallelism all rows, gathered or to be scattered; else 0
  bool uneven;        // they are copied to buffers of equal parts for that (parallel/tensor/group.cpp)
  int64_t q;
  int64_t qkv;
  int64_t up;
  int64_t ffn;
  int64_t mask;  // 0 without dropout
};

}  // namespace lockstep::arch
