#include "lockstep/model/forward_block.h"

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/model/parts.h"

namespace lockstep::model {
namespace {

std::map<std::string, nn::ForwardFunction, std::less<>>& functions() {
  static std::map<std::string, nn::ForwardFunction, std::less<>> all;
  return all;
}

// Layouts are judged before anything starts; who builds layers without one comes here.
std::unique_ptr<nn::Branch> make(PartsBuilder& parts, const BranchPlace& place) {
  if (parts.tensor_size() > 1)
    throw ConfigError({.code = "LS1124",
                       .what = cat(place.name, " is the function ", place.spec.kind, ", which tp(", parts.tensor_size(), ") cannot cut"),
                       .way_out = "use parallel.tp = 1, or give the branch with its linears (docs/own_model.md)"});
  const arch::ForwardKind& kind = arch::forward_kind(place.spec.kind);
  std::vector<nn::Parameter> parameters;
  if (kind.parameters)
    for (const arch::ForwardParameter& parameter : kind.parameters(parts.model()))
      parameters.push_back(parts.parameter(place, parameter.name + ".weight"));
  return std::make_unique<nn::AutogradBranch>(functions().at(kind.id), std::move(parameters),
                                              nn::AutogradOptions{.name = place.name, .by_token = kind.by_token});
}

}  // namespace

void add_forward_block(const arch::ForwardKind& kind, nn::ForwardFunction function) {
  arch::add_forward_kind(kind);
  functions().emplace(kind.id, std::move(function));
  add_branch_maker(arch::forward_kind(kind.id).id, make);
}

}  // namespace lockstep::model
