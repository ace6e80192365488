// What the checks of one rank's list have in common. Internal to the verifier.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/program/names.h"

namespace lockstep::program {

class RankCheck {
 public:
  RankCheck(const Program& program, const Layout& layout, int rank)
      : program_(program),
        layout_(layout),
        rank_(rank),
        actions_(program.list(rank)),
        table_(layout.param_table(rank)),
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
  const std::vector<arch::ParamSpec> table_;
  const int num_layers_;
  std::vector<std::string> problems_;
};

}  // namespace lockstep::program
