// The passes of a block in parts: the branches before the divided one, that one in its parts, and those behind it.
#include <algorithm>
#include <utility>

#include "lockstep/model/block_saved.h"

namespace lockstep::model {

class Block::ForwardParts : public nn::DividedPass {
 public:
  ForwardParts(Block& of, const at::Tensor& x, const nn::Microbatch& microbatch, std::unique_ptr<nn::Saved>* saved)
      : of_(of), at_(of.divided_part()), microbatch_(microbatch), saved_(saved), kept_(saved ? of.new_saved(microbatch) : nullptr),
        stream_{.x = x, .sum = {}, .h = {}} {
    for (size_t i = 0; i < at_; ++i) of_.run(i, stream_, microbatch_, kept_.get());
    const at::Tensor h = of_.read(at_, stream_, kept_.get());
    branch_ = of_.parts_[at_].branch->begin_forward(h, kept_ ? kept_->parts[at_].branch.get() : nullptr, of_.begin(microbatch_));
  }

  void leave() override { branch_->leave(); }
  void arrive() override { branch_->arrive(); }
  void run_experts() override { branch_->run_experts(); }

  at::Tensor finish() override {
    const at::Tensor y = of_.norm_behind(at_, branch_->finish(), kept_.get());
    branch_.reset();
    of_.add(at_, y, stream_, microbatch_, kept_.get());
    for (size_t i = at_ + 1; i < of_.parts_.size(); ++i) of_.run(i, stream_, microbatch_, kept_.get());
    if (saved_) *saved_ = std::move(kept_);
    return stream_.sum.add_(stream_.x);
  }

 private:
  Block& of_;
  const size_t at_;
  const nn::Microbatch microbatch_;
  std::unique_ptr<nn::Saved>* const saved_;  // null: nothing is kept
  std::unique_ptr<BlockSaved> kept_;
  Stream stream_;
  std::shared_ptr<nn::DividedPass> branch_;
};

class Block::BackwardParts : public nn::DividedPass {
 public:
  BackwardParts(Block& of, const at::Tensor& dy, BlockSaved& saved)
      : of_(of), at_(of.divided_part()), saved_(saved), gradients_{.sum = dy, .x = dy, .h = {}} {
    for (size_t i = of_.parts_.size(); i-- > at_ + 1;) run(i);
    branch_ = of_.parts_[at_].branch->begin_backward_input(of_.branch_gradient(at_, gradients_.sum, saved_), *saved_.parts[at_].branch);
  }

  void leave() override { branch_->leave(); }
  void arrive() override { branch_->arrive(); }
  void run_experts() override { branch_->run_experts(); }

  at::Tensor finish() override {
    at::Tensor dh = branch_->finish();
    branch_.reset();
    of_.add_gradient(at_, std::move(dh), gradients_, saved_);
    for (size_t i = at_; i-- > 0;) run(i);
    return gradients_.x;
  }

 private:
  void run(size_t part) {
    at::Tensor dh = of_.parts_[part].branch->backward_input(of_.branch_gradient(part, gradients_.sum, saved_), *saved_.parts[part].branch);
    of_.add_gradient(part, std::move(dh), gradients_, saved_);
  }

  Block& of_;
  const size_t at_;
  BlockSaved& saved_;
  Gradients gradients_;
  std::shared_ptr<nn::DividedPass> branch_;
};

size_t Block::divided_part() const {
  const auto divided = std::ranges::find_if(parts_, [](const Part& part) { return part.branch->divides(); });
  return static_cast<size_t>(divided - parts_.begin());
}

std::shared_ptr<nn::DividedPass> Block::begin_forward(const at::Tensor& x, const nn::Microbatch& microbatch,
                                                      std::unique_ptr<nn::Saved>* saved) {
  if (divided_part() == parts_.size()) return nullptr;
  return std::make_shared<ForwardParts>(*this, x, microbatch, saved);
}

std::shared_ptr<nn::DividedPass> Block::begin_backward_input(const at::Tensor& dy, nn::Saved& saved) {
  if (divided_part() == parts_.size()) return nullptr;
  return std::make_shared<BackwardParts>(*this, dy, static_cast<BlockSaved&>(saved));
}

}  // namespace lockstep::model
