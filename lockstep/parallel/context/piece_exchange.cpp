#include "lockstep/parallel/context/piece_exchange.h"

#include "lockstep/base/check.h"

namespace lockstep::parallel {
namespace {

using program::CallPhase;

class GatheredPieces : public nn::PieceExchange {
 public:
  GatheredPieces(ContextGroup& group, const program::CallId& block, const std::string& part)
      : group_(group), columns_(block.of_part(part + ".columns")), states_(block.of_part(part + ".states")) {}

  int ranks() const override { return group_.size(); }
  int rank() const override { return group_.rank(); }

  nn::Pending gather(const at::Tensor& own, What what) override {
    LOCKSTEP_CHECK(own.is_contiguous(), "pieces with gaps");
    const bool of_columns = what == What::kColumns || what == What::kColumnGradients;
    const bool forward = what == What::kColumns || what == What::kStates;
    return group_.gather(own, (of_columns ? columns_ : states_).with(forward ? CallPhase::kForward : CallPhase::kBackward));
  }

 private:
  ContextGroup& group_;
  const program::CallId columns_, states_;  // without a pass
};

}  // namespace

std::unique_ptr<nn::PieceExchange> make_piece_exchange(ContextGroup& group, const program::CallId& block, const std::string& part) {
  return std::make_unique<GatheredPieces>(group, block, part);
}

}  // namespace lockstep::parallel
