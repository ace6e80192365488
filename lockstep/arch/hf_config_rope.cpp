// Rotary parameters of a config.json, in all spellings.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/arch/hf_reading.h"

namespace lockstep::arch {
namespace {

constexpr const char* kLocalKey = "sliding_attention";
constexpr const char* kFullKey = "full_attention";

class RopeReader {
 public:
  explicit RopeReader(HfReading& reading) : r_(reading), top_(reading.keys) {}

  // As transformers does: rope_scaling stands before rope_parameters, and in either the theta inside before the one outside.
  void usual() {
    ModelConfig& m = r_.model();
    const bool pct = r_.family->rope == HfRope::kPct;
    m.rope_theta = top_.positive(pct ? "rotary_emb_base" : "rope_theta", r_.family->default_rope_theta);
    double factor = r_.family->default_rotary_factor;
    // bamba takes none from outside.
    if (m.family != Family::kBamba) factor = top_.positive(pct ? "rotary_pct" : "partial_rotary_factor", factor);
    bool given = false;
    for (const char* key : {"rope_parameters", "rope_scaling"}) {
      const std::optional<HfKeys> rope = top_.object(key);
      if (!rope || rope->json().empty()) continue;
      if (has_kinds(*rope)) {
        r_.unsupported(cat(key, " by kind of layer"));
        continue;
      }
      given = true;
      m.rope_theta = rope->positive("rope_theta", m.rope_theta);
      m.rope_scaling = scaling(*rope, /*nested=*/false);
      factor = rope->positive("partial_rotary_factor", factor);
    }
    if (!given && m.family == Family::kGptOss) m.rope_scaling = usual_of_gpt_oss();
    rotated(factor);
  }

  // Those outside are of full attention; so is rope_scaling, whatever stands in rope_parameters.
  void by_kind() {
    ModelConfig& m = r_.model();
    m.rope_theta = top_.positive("rope_theta", r_.family->default_rope_theta);
    double local = r_.family->default_local_theta;
    if (m.family == Family::kGemma3) local = top_.positive("rope_local_base_freq", local);
    if (const std::optional<HfKeys> rope = top_.object("rope_parameters"); rope && !rope->json().empty()) {
      if (!has_kinds(*rope)) r_.unsupported(cat("rope_parameters not by kind of layer: of ", kFullKey, ", ", kLocalKey));
      if (const std::optional<HfKeys> full = rope->object(kFullKey)) {
        m.rope_theta = full->positive("rope_theta", m.rope_theta);
        m.rope_scaling = scaling(*full, /*nested=*/true);
        whole(*full);
      }
      if (const std::optional<HfKeys> sliding = rope->object(kLocalKey)) {
        local = sliding->positive("rope_theta", local);
        if (scaling(*sliding, /*nested=*/true).kind != RopeScaling::Kind::kNone)
          r_.unsupported(cat(sliding->name("rope_type"), ": layers with a window turn without scaling"));
        whole(*sliding);
      }
    }
    if (const std::optional<HfKeys> more = top_.object("rope_scaling"); more && !more->json().empty()) {
      m.rope_theta = more->positive("rope_theta", m.rope_theta);
      m.rope_scaling = scaling(*more, /*nested=*/true);
    }
    if (local != m.rope_theta || m.rope_scaling.kind != RopeScaling::Kind::kNone) m.rope_local_theta = local;
  }

 private:
  static bool has_kinds(const HfKeys& rope) {
    return std::any_of(rope.json().begin(), rope.json().end(), [](const Json& value) { return value.is_object(); });
  }

  static RopeScaling usual_of_gpt_oss() {
    return {.kind = RopeScaling::Kind::kYarn, .factor = 32, .original_max_position_embeddings = 4096, .truncate = false};
  }

  void rotated(double factor) {
    ModelConfig& m = r_.model();
    const auto size = static_cast<int64_t>(static_cast<double>(m.head_size) * factor);
    if (r_.family->partial_rotation ? factor > 1 : factor != 1) return r_.unsupported(cat("partial_rotary_factor = ", number_text(factor)));
    if (size == m.head_size) return;
    if (size < 2 || size % 2 != 0)
      r_.problem(cat("partial_rotary_factor(", number_text(factor), ") x head size(", m.head_size, ") = ", size, ": rotary positions turn pairs"));
    m.rotary_size = size;
  }

  void whole(const HfKeys& keys) {
    const double factor = keys.positive("partial_rotary_factor", 1.0);
    if (factor != 1) r_.unsupported(cat(keys.name("partial_rotary_factor"), " = ", number_text(factor)));
  }

  // `nested`: of one kind of layers.
  RopeScaling scaling(const HfKeys& keys, bool nested) {
    const std::string type = keys.text("rope_type", keys.text("type", "default"));
    const bool alone = r_.model().family == Family::kPhi3;  // whose class takes no other one that is built
    if (type == "default") return {};
    if (type == "yarn" && !alone) return yarn(keys, nested);
    if (alone || (type != "linear" && type != "llama3")) {
      r_.unsupported(cat(keys.name("rope_type"), " = \"", type, "\": of default", alone ? "" : ", linear, llama3, yarn"));
      return {};
    }
    RopeScaling scaling{.kind = RopeScaling::Kind::kLinear, .factor = keys.positive("factor")};
    if (type == "linear") return scaling;
    scaling.kind = RopeScaling::Kind::kLlama3;
    scaling.low_freq_factor = keys.positive("low_freq_factor");
    scaling.high_freq_factor = keys.positive("high_freq_factor");
    scaling.original_max_position_embeddings = original_length(keys, nested);
    if (r_.problems.empty() && scaling.high_freq_factor <= scaling.low_freq_factor)
      r_.problem(cat(keys.name("high_freq_factor"), " = ", scaling.high_freq_factor, " is not above low_freq_factor = ", scaling.low_freq_factor));
    return scaling;
  }

  int64_t original_length(const HfKeys& keys, bool nested) const {
    const int64_t inside = keys.size("original_max_position_embeddings", r_.model().max_seq_len);
    return nested ? inside : top_.size("original_max_position_embeddings", inside);
  }

  RopeScaling yarn(const HfKeys& keys, bool nested) {
    const auto given = [&](const char* key) {  // 0 is as good as nothing
      const Json* value = keys.find(key);
      return value && !(value->is_number() && value->get<double>() == 0) ? keys.positive(key) : 0.0;
    };
    const int64_t longest = r_.model().max_seq_len, inside = keys.size("original_max_position_embeddings", longest);
    RopeScaling scaling{.kind = RopeScaling::Kind::kYarn};
    scaling.original_max_position_embeddings = original_length(keys, nested);
    scaling.factor = keys.positive("factor", static_cast<double>(longest) / static_cast<double>(inside));
    scaling.beta_fast = keys.positive("beta_fast", scaling.beta_fast);
    scaling.beta_slow = keys.positive("beta_slow", scaling.beta_slow);
    scaling.mscale = given("mscale");
    scaling.mscale_all_dim = given("mscale_all_dim");
    scaling.attention_factor = given("attention_factor");
    scaling.truncate = keys.flag("truncate", true);
    if (nested && !scaling.truncate) r_.unsupported(cat(keys.name("truncate"), " = false: transformers does not read it there"));
    if (r_.problems.empty() && scaling.beta_fast <= scaling.beta_slow)
      r_.problem(cat(keys.name("beta_fast"), " = ", scaling.beta_fast, " is not above beta_slow = ", scaling.beta_slow));
    return scaling;
  }

  HfReading& r_;
  const HfKeys& top_;
};

}  // namespace

void read_rope(HfReading& reading) {
  RopeReader reader(reading);
  if (reading.family->rope == HfRope::kByKind) return reader.by_kind();
  if (reading.family->rope != HfRope::kNone) reader.usual();
}

}  // namespace lockstep::arch
