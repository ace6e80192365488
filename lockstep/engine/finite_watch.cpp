#include "lockstep/engine/finite_watch.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/check.h"

namespace lockstep::engine {
namespace {

// A sum is finite only if every term is (or it overflows, which is no better).
bool is_finite(const at::Tensor& values) { return std::isfinite(values.sum().item<double>()); }

}  // namespace

void FiniteWatch::start_step() {
  if (!params_.empty()) flags_.narrow(0, 0, std::ssize(params_)).zero_();
  params_.clear();
  read_ = 0;
  first_ = -1;
}

void FiniteWatch::look(const std::vector<Gradients>& gradients) {
  if (first_ >= 0) return;
  std::vector<nn::cuda::WatchedPiece> pieces;
  for (const Gradients& some : gradients) {
    if (some.all.is_cpu() && !forced_) {
      look_on_host(some);
      continue;
    }
    for (const ParameterStore::Piece& piece : some.pieces) {
      pieces.push_back({.values = piece.values, .flag = std::ssize(params_)});
      params_.push_back(piece.param);
    }
  }
  if (pieces.empty()) return;
  make_room(std::ssize(params_), pieces[0].values.device());
  forced_ ? forced_(pieces, flags_) : nn::cuda::mark_nonfinite(pieces, flags_);
}

void FiniteWatch::look_on_host(const Gradients& gradients) {
  if (first_ >= 0 || is_finite(gradients.all)) return;
  const auto found = std::ranges::find_if_not(gradients.pieces, is_finite, &ParameterStore::Piece::values);
  if (found != gradients.pieces.end()) first_ = found->param;
}

// Most steps need what the step before had; the first ones ask for more in doubling sizes.
void FiniteWatch::make_room(int64_t flags, at::Device device) {
  const int64_t room = flags_.defined() ? flags_.numel() : 0;
  if (flags <= room) return;
  const MemoryScope scope(memory_, MemoryCategory::kBuffers);
  const at::Tensor larger = at::zeros({std::max<int64_t>(256, 2 * flags)}, at::TensorOptions().dtype(at::kInt).device(device));
  if (room > 0) larger.narrow(0, 0, room).copy_(flags_);
  flags_ = larger;
}

at::Tensor FiniteWatch::unread() const {
  const int64_t count = std::ssize(params_) - read_;
  return count > 0 ? flags_.narrow(0, read_, count) : at::Tensor();
}

void FiniteWatch::read(std::span<const double> flags) {
  LOCKSTEP_CHECK_EQ(std::ssize(flags), std::ssize(params_) - read_, "flags of gradients");
  for (size_t i = 0; i < flags.size() && first_ < 0; ++i)
    if (flags[i] != 0) first_ = params_[static_cast<size_t>(read_) + i];
  read_ = std::ssize(params_);
}

void FiniteWatch::read() {
  const at::Tensor flags = unread();
  if (!flags.defined()) return;
  const at::Tensor here = flags.to(at::kDouble).cpu();
  read({here.const_data_ptr<double>(), static_cast<size_t>(here.numel())});
}

int FiniteWatch::first() const {
  LOCKSTEP_CHECK_EQ(read_, std::ssize(params_), "flags of gradients that nobody has read");
  return first_;
}

}  // namespace lockstep::engine
