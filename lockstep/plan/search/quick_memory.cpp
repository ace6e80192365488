#include "lockstep/plan/search/quick_memory.h"

#include <algorithm>

namespace lockstep::plan {
namespace {

using program::Work;

constexpr double kFp32 = 4;
constexpr double kOutAndIn = 2 * 2;  // of a gradient in bf16, as it goes out and as it comes in
constexpr int kNone = -1;

bool goes_back(Work work) { return work == Work::kInputAndWeight || work == Work::kInput; }

}  // namespace

MemoryForm::MemoryForm(const config::RunConfig& config, const arch::ModelConfig& model)
    : job_{.prefetch = static_cast<double>(config.parallel.prefetch),
           .prefetch_limit = static_cast<double>(config.parallel.prefetch_limit.count),
           .reshard_after_forward = config.parallel.reshard_after_forward,
           .reshard_after_microbatch = config.parallel.reshard_after_microbatch,
           .overlap = config.parallel.overlap,
           .tied = model.tied,
           .fp32 = config.train.precision == config::Precision::kFp32} {}

// As MemoryWalk has the bytes of a unit (program/predict/memory_walk.cpp).
MemoryForm::PlaceStates MemoryForm::states_of(const MemoryInput& input, const UnitSizes& unit) const {
  const Candidate& candidate = input.candidate;
  PlaceStates states;
  for (size_t group = 0; group < unit.size(); ++group) {
    const UnitSize& size = unit[group];
    if (size.elements == 0) continue;
    const double shards = input.shards[group], whole = padded_elements(size.elements, shards), part = whole / shards;
    const bool sharded = candidate.zero == 3 && shards > 1;
    const bool transient = (candidate.zero >= 2 && shards > 1) || candidate.offload_optimizer;
    states.rest += (sharded ? part : whole) * size.element_size;
    if (sharded) {
      states.gathered_units[group] = whole * size.element_size;
      states.gathered += states.gathered_units[group];
    }
    const double sums = (transient ? part : whole) * kFp32, updated = part * size.updated;
    (candidate.offload_optimizer ? states.host : states.rest) += sums;
    if (transient) states.open += whole * kFp32;
    const bool values = size.element_size == kFp32;  // they are the compute copy
    if (candidate.offload_optimizer)
      states.host += updated;
    else
      states.rest += updated - (values ? part * kFp32 : 0);
    if (input.post_validates) states.rest += updated;
    if (shards > 1 && candidate.zero > 0 && size.wire_size < kFp32) states.staged += kOutAndIn * whole;
    states.copied += kFp32 * std::clamp(part - size.shared_begin, 0.0, size.shared);
  }
  return states;
}

// Of parameters that are gathered for the computing actions behind the one at hand, where that and the next one are of `place`.
double MemoryForm::prefetched(const MemoryInput& input, int place) const {
  if (input.candidate.zero < 3 || place == kNone) return 0;
  // RECOMPUTE and B of a layer are two actions that use the same.
  const bool twice = input.candidate.recompute != config::Recompute::kNone;
  const double layers = twice ? static_cast<double>(static_cast<int>((job_.prefetch + 1) / 2)) : job_.prefetch;
  double bytes = 0;
  for (double layer = 0; layer < layers; ++layer)
    for (const double unit : states(place).gathered_units)
      if (bytes + unit <= job_.prefetch_limit) bytes += unit;
  return bytes;
}

// The head has the gradient of the embedding that it shares, until that is through with its own.
double MemoryForm::open_of(const RankGroup& group, const ChunkLayers& chunk, int place) const {
  const bool shared = job_.tied && group.head, head = place + 1 == static_cast<int>(states_.size());
  if (shared && place == 0 && !chunk.head) return 0;
  return states(place).open + (shared && head && !chunk.embedding ? states(0).open : 0);
}

// Of the first layer of the next stretch.
int MemoryForm::next_place(const RankGroup& group, const Moment& moment) const {
  if (moment.next < 0) return kNone;
  const ChunkLayers& chunk = group.chunks[static_cast<size_t>(moment.next)];
  const int head = static_cast<int>(states_.size()) - 1;
  if (moment.next_forward) return chunk.embedding ? 0 : chunk.bottom != kNone ? chunk.bottom : head;
  return chunk.head ? head : chunk.top != kNone ? chunk.top : 0;
}

double MemoryForm::head_gathered() const { return states_.back().gathered + (job_.tied ? states(0).gathered : 0); }

// Beside all that is kept: the last layer of the chunk has run.
double MemoryForm::forward_bytes(const MemoryInput& input, const RankGroup& group, const Moment& moment) const {
  const ChunkLayers& chunk = group.chunks[static_cast<size_t>(moment.chunk)];
  const double saved = chunks_[static_cast<size_t>(moment.chunk)].saved;
  const int head = static_cast<int>(states_.size()) - 1;
  double most = 0;
  if (chunk.embedding) {  // before all else of the chunk
    const LayerBytes& layer = bytes(input, 0);
    most = layer.kept - saved + layer.output + layer.forward + states(0).gathered + prefetched(input, chunk.bottom);
  }
  if (chunk.head) most = std::max(most, bytes(input, head).forward + head_gathered());
  const int place = chunk.top != kNone ? chunk.top : chunk.embedding ? 0 : kNone;
  if (place == kNone) return most;
  const LayerBytes& layer = bytes(input, place);
  const double above = chunk.head ? bytes(input, head).kept : 0;
  return std::max(most, layer.output + layer.forward - above + states(place).gathered + prefetched(input, chunk.head ? head : next_place(group, moment)));
}

// B or I of a block, or of the embedding, beside what is kept of it and of the layers below. `above`, `below`: places of its neighbours.
double MemoryForm::block_backward(const MemoryInput& input, const Moment& moment, int place, int above, int below) const {
  const LayerBytes& layer = bytes(input, place);
  const PlaceStates& own = states(place);
  const bool alone = input.candidate.pp == 1, again = input.candidate.recompute != config::Recompute::kNone && place != 0;
  const bool later = alone && job_.overlap && above != kNone && input.candidate.zero > 0 && states(above).open > 0;  // it is reduced meanwhile
  const double reduced = later ? states(above).open + states(above).staged : 0;
  const double dy = layer.output, dx = place == 0 ? 0 : layer.output;
  const double workspace = moment.work == Work::kInput ? layer.input : layer.backward;
  const bool opens = moment.work != Work::kInput && (alone || moment.opened[static_cast<size_t>(moment.chunk)] == 0);
  const double gathered = place == 0 ? 0 : own.gathered;  // the next microbatch's embedding comes beside that of this one
  double most = dy + layer.restored + dx + workspace + gathered + prefetched(input, below) + (opens ? own.open : 0) + (again ? 0 : reduced);
  // What comes for the layer below is on its way before the gradients of the one above are gone.
  if (again) most = std::max(most, dy + layer.restored + std::max(layer.recompute, prefetched(input, below)) + gathered + reduced);
  return most;
}

// The backward pass of the chunk goes down its layers: what is kept of those above is gone, and what W needs of them is there where I runs alone.
double MemoryForm::backward_bytes(const MemoryInput& input, const Moment& moment, const RankGroup& group) const {
  const ChunkLayers& chunk = group.chunks[static_cast<size_t>(moment.chunk)];
  const int next = next_place(group, moment), head = static_cast<int>(states_.size()) - 1;
  const bool apart = moment.work == Work::kInput;
  const bool opens = input.candidate.pp == 1 || moment.opened[static_cast<size_t>(moment.chunk)] == 0;
  const double opened = opens && !apart && stays_open(input) ? 1 : 0;  // gradients of the layers above have come, and stay
  const auto left = [&](int place) { return (apart ? bytes(input, place).held : 0) - bytes(input, place).kept + opened * open_of(group, chunk, place); };
  double most = 0, above = 0;  // above: what the layers above have left, less what was kept of them
  if (chunk.head) {
    const LayerBytes& layer = bytes(input, head);
    const double dx = chunk.top != kNone ? bytes(input, chunk.top).output : 0;
    most = dx + (apart ? layer.input : layer.backward) + head_gathered() + prefetched(input, chunk.top) + (opens && !apart ? states(head).open : 0);
    above = left(head);
  }
  if (chunk.top != kNone) {
    most = std::max(most, above + block_backward(input, moment, chunk.top, chunk.head ? head : kNone, chunk.second != kNone ? chunk.second : next));
    above += left(chunk.top);
  }
  if (chunk.second != kNone) most = std::max(most, above + block_backward(input, moment, chunk.second, chunk.top, chunk.second));
  double all = 0;
  for (size_t place = 1; place < states_.size(); ++place) all += chunk.layers[place] * left(static_cast<int>(place));
  // What W needs may be more than what was kept, and the next chunk's parameters come: then it is most at the bottom.
  if (chunk.bottom != kNone && chunk.second != kNone)
    most = std::max(most, all - left(chunk.bottom) + block_backward(input, moment, chunk.bottom, chunk.bottom, next));
  // From the head's backward on.
  const bool known = job_.tied && group.head && opens && !apart, shared = known && chunk.embedding && chunk.head;
  if (chunk.embedding) most = std::max(most, all + block_backward(input, moment, 0, chunk.top, next) - (known ? states(0).open : 0));
  return most + (shared ? states(0).open : 0);
}

double MemoryForm::moment_bytes(const MemoryInput& input, const RankGroup& group, const Moment& moment) const {
  const bool back = goes_back(moment.work);
  double sum = 0;
  for (size_t i = 0; i < chunks_.size(); ++i) {
    sum += moment.saved[i] * chunks_[i].saved + moment.held[i] * chunks_[i].held;
    if (input.candidate.pp > 1 && moment.opened[i] != 0) sum += chunks_[i].open;
  }
  sum += moment.messages * bytes(input, 1).output;
  if (moment.work == Work::kForward) return sum + forward_bytes(input, group, moment);
  if (back) return sum + backward_bytes(input, moment, group);
  return sum + weight_bytes(input, group, moment);
}

// Down the layers of the chunk: what is held of those above is gone, and their gradients have come.
double MemoryForm::weight_bytes(const MemoryInput& input, const RankGroup& group, const Moment& moment) const {
  const ChunkLayers& chunk = group.chunks[static_cast<size_t>(moment.chunk)];
  const bool opens = moment.opened[static_cast<size_t>(moment.chunk)] == 0;
  const int head = static_cast<int>(states_.size()) - 1;
  const auto at = [&](int place) { return bytes(input, place).weight + (opens ? open_of(group, chunk, place) : 0); };
  const auto left = [&](int place) { return (opens && stays_open(input) ? open_of(group, chunk, place) : 0) - bytes(input, place).held; };
  double most = chunk.head ? at(head) : 0;
  if (chunk.top != kNone) most = std::max(most, (chunk.head ? left(head) : 0) + at(chunk.top));
  double all = 0;
  for (size_t place = 1; place < states_.size(); ++place) all += chunk.layers[place] * left(static_cast<int>(place));
  if (chunk.bottom != kNone) most = std::max(most, all - left(chunk.bottom) + at(chunk.bottom));
  if (chunk.embedding) most = std::max(most, all + at(0));
  return most;
}

double MemoryForm::peak_of(const MemoryInput& input, const RankGroup& group, double enough) {
  const int head = static_cast<int>(states_.size()) - 1;
  double rest = input.microbatches * input.layers.sequence_bytes, staged = 0, gathered = 0, copied = 0;
  for (size_t place = 0; place < states_.size(); ++place) {
    rest += group.layers[place] * states_[place].rest;
    staged += group.layers[place] * states_[place].staged;
    gathered += group.layers[place] * states_[place].gathered;
    copied += group.layers[place] * states_[place].copied;
  }
  if (job_.tied && group.head && !group.embedding) rest += states(0).rest;  // a second copy
  if (rest > enough) return rest;
  chunks_.clear();
  for (const ChunkLayers& chunk : group.chunks) {
    ChunkBytes& sums = chunks_.emplace_back();
    for (size_t place = 0; place < states_.size(); ++place) {
      if (chunk.layers[place] == 0) continue;
      const LayerBytes& layer = bytes(input, static_cast<int>(place));
      sums.saved += chunk.layers[place] * layer.kept;
      sums.held += chunk.layers[place] * layer.held;
      sums.open += chunk.layers[place] * open_of(group, chunk, static_cast<int>(place));
    }
  }
  double most = 0;
  for (const Moment& moment : group.moments) {
    most = std::max(most, moment_bytes(input, group, moment));
    if (rest + most > enough) return rest + most;
  }
  // Parameters that stay until the backward pass, or the next microbatch, are all there at the top of the model.
  if (!job_.reshard_after_forward || !job_.reshard_after_microbatch)
    most += std::max(0.0, gathered - states(group.head ? head : 1).gathered);
  // Behind the last backward pass all sums may be on their way; where gradients come and go they have left before.
  if (input.candidate.zero == 1) most = std::max(most, staged);
  return rest + std::max(most, copied);
}

QuickMemory MemoryForm::of(const MemoryInput& input, double enough) {
  states_.clear();
  for (const UnitSizes& unit : input.units) states_.push_back(states_of(input, unit));
  QuickMemory memory;
  for (const RankGroup& group : input.shape.groups) {
    const double peak = peak_of(input, group, enough);
    if (peak > memory.device) memory.device = peak, memory.rank = group.first;
    double host = 0;
    for (size_t place = 0; place < states_.size(); ++place) host += group.layers[place] * states_[place].host;
    memory.host = std::max(memory.host, host);
    if (memory.device > enough) break;
  }
  return memory;
}

}  // namespace lockstep::plan
