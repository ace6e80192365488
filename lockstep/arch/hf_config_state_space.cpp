// State spaces of a config.json.
#include <algorithm>
#include <cmath>
#include <optional>

#include "lockstep/arch/hf_reading.h"

namespace lockstep::arch {
namespace {

// Those of nemotron_h have older names too, which stand before the newer.
const char* either(const HfReading& r, const char* older, const char* key) {
  return r.model_is(Family::kNemotronH) && r.keys.json().contains(older) ? older : key;
}

// As transformers writes a number that JSON has not.
bool is_infinity(const Json& value) { return value == Json{{"__float__", "Infinity"}}; }

void step_limits(HfReading& r) {
  StateSpaceSizes& s = r.model().state_space;
  if (r.model_is(Family::kNemotronH)) {  // whose class reads no other limit
    const char* key = either(r, "mamba_dt_min", "time_step_min");
    const Json* least = r.keys.find(key);
    s.step_least = least && *least == 0 ? 0 : r.keys.positive(key, 0.001);
    s.step_most = s.step_least > 0 ? kNoStepLimit : 0;
    return;
  }
  const Json* limits = r.keys.find("time_step_limit");
  if (!limits) return;
  const auto is_number = [](const Json& value) { return value.is_number() && std::isfinite(value.get<double>()) && value >= 0; };
  if (!limits->is_array() || limits->size() != 2 || !is_number((*limits)[0]) || !(is_number((*limits)[1]) || is_infinity((*limits)[1])))
    return r.problem("time_step_limit is not two numbers, of which the second may be infinite");
  s.step_least = (*limits)[0].get<double>();
  s.step_most = is_infinity((*limits)[1]) ? kNoStepLimit : std::min(kNoStepLimit, (*limits)[1].get<double>());
  if (s.step_most <= s.step_least)
    r.problem(cat("time_step_limit: ", number_text(s.step_most), " is not above ", number_text(s.step_least)));
  if (s.step_least == 0 && s.step_most == kNoStepLimit) s.step_most = 0;
}

// A null means what mamba_expand says, a missing key what the class takes.
int64_t inner_size(const HfReading& r, const HfStateSpace& theirs) {
  const bool null = r.keys.json().contains(theirs.inner) && !r.keys.has(theirs.inner);
  return null ? r.keys.size("mamba_expand", 2) * r.read.model.hidden : r.keys.size(theirs.inner, 1024);
}

int64_t head_size(HfReading& r, const HfStateSpace& theirs) {
  const Json* value = r.keys.find(theirs.head_size);
  const bool automatic = (r.model_is(Family::kBamba) || theirs.inner) && (!value || *value == "auto");
  if (!automatic) return r.keys.size(theirs.head_size);
  if (theirs.inner) return std::max<int64_t>(1, inner_size(r, theirs) / r.model().state_space.heads);
  return std::max<int64_t>(1, r.keys.size(theirs.expand, 2) * r.model().hidden / r.model().state_space.heads);
}

}  // namespace

void read_state_space(HfReading& r) {
  const HfStateSpace& theirs = r.family->state_space;
  if (!theirs.heads) return;
  ModelConfig& m = r.model();
  StateSpaceSizes& s = m.state_space;
  s.heads = r.keys.size(theirs.heads);
  s.head_size = head_size(r, theirs);
  s.groups = s.norm_groups = r.keys.size(either(r, "mamba_n_groups", theirs.groups), theirs.default_groups);
  s.state = r.keys.size(theirs.state);
  s.convolution = r.keys.size(either(r, "mamba_d_conv", theirs.convolution), 4);
  s.chunk = r.keys.size(either(r, "mamba_chunk_size", theirs.chunk), theirs.default_chunk);
  s.convolution_bias = r.keys.flag(either(r, "mamba_conv_bias", theirs.convolution_bias), true);
  s.projection_bias = r.keys.flag(theirs.projection_bias, false);
  if (theirs.norm && !r.keys.flag(theirs.norm, false)) s.norm_groups = 0;
  if (theirs.norm && s.norm_groups > 0 && r.keys.flag("mamba_norm_before_gate", true))
    r.unsupported(cat("mamba_norm_before_gate = true: with ", theirs.norm, " the gate comes before the norm"));
  if (theirs.inner && r.keys.flag("projectors_bias", false) != s.projection_bias)
    r.unsupported(cat("projectors_bias beside ", theirs.projection_bias, ": both projections have a bias, or none has"));
  step_limits(r);
  const std::string activation = r.keys.text(theirs.activation, "silu");
  if (activation != "silu" && activation != "swish")
    r.unsupported(cat(theirs.activation, " = \"", activation, "\": of silu, behind the convolution"));
  if (theirs.expand) {
    const int64_t expand = r.keys.size(theirs.expand, 2);
    if (expand * m.hidden != s.inner())
      r.problem(cat(theirs.heads, "(", s.heads, ") x ", theirs.head_size, "(", s.head_size, ") != ", theirs.expand, "(", expand, ") x ",
                    r.family->hidden, "(", m.hidden, ")"));
  }
  if (theirs.inner && inner_size(r, theirs) != s.inner())
    r.problem(cat(theirs.heads, "(", s.heads, ") x ", theirs.head_size, "(", s.head_size, ") != ", theirs.inner, "(", inner_size(r, theirs), ")"));
  if (m.family == Family::kMamba2 && r.keys.flag("residual_in_fp32", true))
    r.note("residual_in_fp32 = true: sums of blocks are in the dtype of the run");
  if (const double loss = r.keys.above_zero("z_loss_coefficient"); loss > 0)
    r.unsupported(cat("z_loss_coefficient = ", number_text(loss)));
  if (r.family->heads) return;
  // Nobody attends, and there is no MLP: sizes that stand for nothing.
  m.heads = m.kv_heads = 1;
  m.head_size = m.hidden;
  m.ffn = s.inner();
}

}  // namespace lockstep::arch
