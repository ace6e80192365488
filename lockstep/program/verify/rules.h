// The rules of verify.h by what they are about, and what checks of one rank's list have in common. Internal to the verifier.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/program/verify/verify.h"

namespace lockstep::program {

// [once], [order] and [free] of what one rank computes. The indices of its actions exist.
std::vector<std::string> check_passes(const Program& program, const Layout& layout, int rank, Pass after);

// [match] and [deadlock] over the ranks of pp; of programs in which check_passes found nothing.
std::vector<std::string> check_pipelines(const Program& program, const Layout& layout, Pass after);
// [life], [prefetch] and [reshard] of one rank's list, whose indices all exist.
std::vector<std::string> check_life(const Program& program, const Layout& layout, int rank);

class RankCheck {
 public:
  RankCheck(const Program& program, const Layout& layout, int rank)
      : program_(program),
        layout_(layout),
        rank_(rank),
        actions_(program.list(rank)),
        num_layers_(layout.num_layers()) {}

 protected:
  void problem(const char* rule, const std::string& what) {
    problems_.push_back(cat("[", rule, "] rank ", rank_, ": ", what));
  }
  std::string text(size_t position) const { return action_text(actions_[position], program_.buckets, num_layers_); }
  std::string name(int unit) const { return layer_label(unit, num_layers_); }

  const Program& program_;
  const Layout& layout_;
  const int rank_;
  const std::vector<Action>& actions_;
  const int num_layers_;
  std::vector<std::string> problems_;
};

}  // namespace lockstep::program
