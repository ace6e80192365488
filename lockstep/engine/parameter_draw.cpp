// The initial values of a store.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <span>

#include "lockstep/engine/parameter_store.h"
#include "lockstep/model/model.h"

namespace lockstep::engine {
namespace {

// Initial values of elements [begin, begin + out.size()) of this rank's piece of the parameter. A piece that is cut along
// dim 1 lies row by row in the global one.
void draw(const arch::ParamSpec& spec, uint64_t seed, int64_t begin, std::span<float> out) {
  const bool columns = spec.cut_dim == 1;
  const int64_t row = spec.numel() / spec.shape[0];
  const int64_t width = columns ? spec.local_shape[1] : spec.local_numel();
  const auto end = begin + static_cast<int64_t>(out.size());
  for (int64_t at = begin; at < end;) {
    const int64_t count = std::min(end, (at / width + 1) * width) - at;
    const int64_t global =
        columns ? at / width * spec.shape[1] + spec.local_offset[1] + at % width : spec.local_offset[0] * row + at;
    model::initial_values(spec, seed, global, out.subspan(static_cast<size_t>(at - begin), static_cast<size_t>(count)));
    at += count;
  }
}

void draw_into(const arch::ParamSpec& spec, uint64_t seed, int64_t begin, const at::Tensor& target) {
  constexpr int64_t kGrain = 1 << 16;
  const bool in_place = target.is_cpu() && target.scalar_type() == at::kFloat;
  const at::Tensor values = in_place ? target : at::empty({target.numel()}, at::kFloat);
  float* data = values.data_ptr<float>();
  at::parallel_for(0, target.numel(), kGrain, [&](int64_t first, int64_t last) {
    draw(spec, seed, begin + first, {data + first, static_cast<size_t>(last - first)});
  });
  if (!in_place) target.copy_(values);
}

}  // namespace

// A compute copy that is whole is drawn whole: other ranks' parts of it too.
void ParameterStore::initialize(uint64_t seed) {
  change_units([&](size_t unit) {
    const at::Tensor values = value_part(unit);
    for (const arch::ShardSlot& slot : slots_[unit])
      draw_into(table_[static_cast<size_t>(slot.param)], seed, slot.begin, values.narrow(0, slot.offset, slot.numel));
  });
  refresh_compute();
  for (size_t row = 0; row < table_.size(); ++row) {
    const size_t unit = places_[row].unit;
    if (!compute_.transient(unit) && layout_.units[unit].shards > 1)
      draw_into(table_[row], seed, 0, view(compute_, {static_cast<int>(row)}).flatten());
  }
}

}  // namespace lockstep::engine
