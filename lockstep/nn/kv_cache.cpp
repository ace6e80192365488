#include "lockstep/nn/kv_cache.h"

#include <algorithm>

#include "lockstep/base/check.h"

namespace lockstep::nn {
namespace {

// Of `rows` new tokens of a sequence those that stay here, and where in its slot they go.
struct Kept {
  const CacheSpan& span;
  int64_t rows;
  int64_t count() const { return span.part ? static_cast<int64_t>(span.part->kept.size()) : rows; }
  int64_t row(int64_t i) const { return span.part ? span.part->kept[static_cast<size_t>(i)] : i; }
  int64_t place(int64_t i) const { return (span.part ? span.part->held : span.start) + i; }
  // How many from i on are neighbouring rows.
  int64_t run(int64_t i) const {
    int64_t length = 1;
    while (i + length < count() && row(i + length) == row(i) + length) ++length;
    return length;
  }
};

template <typename T>
void append(const at::Tensor& from, const at::Tensor& to, std::span<const CacheSpan> spans) {
  const int64_t size = from.size(3);
  for (int64_t b = 0; b < from.size(0); ++b) {
    const Kept kept{spans[static_cast<size_t>(b)], from.size(1)};
    for (int64_t i = 0; i < kept.count(); ++i) {
      for (int64_t head = 0; head < from.size(2); ++head) {
        const T* row = from.const_data_ptr<T>() + b * from.stride(0) + kept.row(i) * from.stride(1) + head * from.stride(2);
        std::copy_n(row, size, to.data_ptr<T>() + kept.span.slot * to.stride(0) + head * to.stride(1) + kept.place(i) * size);
      }
    }
  }
}

}  // namespace

std::vector<PositionRun> runs_of(const CacheSpan& span, int64_t rows) {
  if (span.part) return span.part->runs;
  return {{.row = 0, .count = rows, .position = span.start}};
}

void append_to_cache(const at::Tensor& k, const at::Tensor& v, const KvCacheLayer& cache, std::span<const CacheSpan> spans) {
  LOCKSTEP_CHECK_EQ(static_cast<int64_t>(spans.size()), k.size(0));
  for (const CacheSpan& span : spans) {
    const Kept kept{span, k.size(1)};
    LOCKSTEP_CHECK(span.slot < cache.k.size(0) && kept.place(kept.count()) <= cache.k.size(2), "slot ", span.slot, ", tokens ",
                   kept.place(0), " + ", kept.count(), " of ", cache.k.size(2));
  }
  if (k.is_cpu() && k.scalar_type() == at::kFloat) return append<float>(k, cache.k, spans), append<float>(v, cache.v, spans);
  for (size_t b = 0; b < spans.size(); ++b) {
    const Kept kept{spans[b], k.size(1)};
    for (int64_t i = 0, count = 0; i < kept.count(); i += count) {
      count = kept.run(i);
      const auto copy = [&](const at::Tensor& from, const at::Tensor& to) {
        to[kept.span.slot].narrow(1, kept.place(i), count).copy_(from[static_cast<int64_t>(b)].narrow(0, kept.row(i), count).transpose(0, 1));
      };
      copy(k, cache.k);
      copy(v, cache.v);
    }
  }
}

bool are_prompts(std::span<const CacheSpan> spans) {
  return std::ranges::all_of(spans, [](const CacheSpan& span) { return span.start == 0; });
}

const TokenPlaces* cut_places(std::span<const CacheSpan> spans) { return spans.front().part ? spans.front().part->places : nullptr; }

}  // namespace lockstep::nn
