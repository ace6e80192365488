#include "lockstep/infer/generate.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::infer {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

at::Tensor tensor_of(std::span<const int64_t> ids, at::IntArrayRef shape) {
  at::Tensor tensor = at::empty(shape, at::kLong);
  std::copy(ids.begin(), ids.end(), tensor.data_ptr<int64_t>());
  return tensor;
}

size_t common_prefix(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.begin() + static_cast<ptrdiff_t>(std::min(a.size(), b.size())),
                                           b.begin()).first - a.begin());
}

}  // namespace

void check_prompt(const arch::ModelConfig& model, const std::vector<int64_t>& prompt, int64_t max_new_tokens,
                  int64_t capacity) {
  const auto length = static_cast<int64_t>(prompt.size());
  if (length == 0) throw DataError({.code = "LS1241", .what = "the prompt has no token"});
  for (int64_t i = 0; i < length; ++i) {
    const int64_t id = prompt[static_cast<size_t>(i)];
    if (id < 0 || id >= model.vocab_size)
      throw DataError({.code = "LS1241",
                       .what = cat("prompt token ", i, " is ", id, ", but the model's vocabulary has ", model.vocab_size)});
  }
  if (length + max_new_tokens > capacity)
    throw DataError({.code = "LS1241",
                     .what = cat("prompt(", length, ") + max_new_tokens(", max_new_tokens, ") = ", length + max_new_tokens,
                                 ", but the model's max_seq_len is ", capacity),
                     .way_out = length < capacity ? cat("use --max-new-tokens ", capacity - length) : "use a shorter prompt"});
}

// One call of generate().
class Round {
 public:
  Round(Generator& generator, std::span<const std::vector<int64_t>> prompts, const GenerateOptions& options,
        const OnToken& on_token)
      : g_(generator), prompts_(prompts), options_(options), on_token_(on_token), sampler_(options.sampling),
        prompt_of_(static_cast<size_t>(g_.cache_.slots())) {
    result_.continuations.resize(prompts.size());
  }

  Generated run() {
    while (start_prompts() || !active_.empty()) {
      if (!active_.empty()) step();
    }
    return std::move(result_);
  }

 private:
  // Gives free slots their next prompts; false where none was left.
  bool start_prompts() {
    bool started = false;
    for (size_t slot = 0; slot < prompt_of_.size() && next_ < prompts_.size(); ++slot) {
      if (prompt_of_[slot]) continue;
      prompt_of_[slot] = next_++;
      active_.push_back(static_cast<int64_t>(slot));
      prefill(static_cast<int64_t>(slot));
      started = true;
    }
    return started;
  }

  void prefill(int64_t slot) {
    const Clock::time_point begin = Clock::now();
    const std::vector<int64_t>& prompt = prompts_[*prompt_of_[static_cast<size_t>(slot)]];
    std::vector<int64_t>& held = g_.held_[static_cast<size_t>(slot)];
    // The last token is always computed: its logits are wanted.
    size_t known = options_.reuse_prefix ? std::min(common_prefix(held, prompt), prompt.size() - 1) : 0;
    if (!g_.cache_.can_truncate(slot, static_cast<int64_t>(known))) known = 0;
    g_.cache_.truncate(slot, static_cast<int64_t>(known));
    held = prompt;
    const std::span<const int64_t> rest = std::span(prompt).subspan(known);
    const int64_t slots[] = {slot};
    const at::Tensor logits =
        g_.decoder_.append(tensor_of(rest, {1, static_cast<int64_t>(rest.size())}), slots, g_.cache_).cpu().contiguous();
    result_.timing.prompt_tokens += static_cast<int64_t>(rest.size());
    take(slot, logits);
    result_.timing.prefill_seconds += seconds_since(begin);
    if (result_.timing.first_token_seconds == 0) result_.timing.first_token_seconds = seconds_since(begin_);
  }

  // One more token for every active slot.
  void step() {
    const Clock::time_point begin = Clock::now();
    last_.clear();
    for (const int64_t slot : active_) last_.push_back(g_.held_[static_cast<size_t>(slot)].back());
    const std::vector<int64_t> slots = active_;
    const at::Tensor logits =
        g_.decoder_.append(tensor_of(last_, {static_cast<int64_t>(last_.size()), 1}), slots, g_.cache_).cpu().contiguous();
    for (size_t row = 0; row < slots.size(); ++row) take(slots[row], logits[static_cast<int64_t>(row)]);
    result_.timing.decode_tokens += static_cast<int64_t>(slots.size());
    ++result_.timing.decode_steps;
    result_.timing.decode_seconds += seconds_since(begin);
  }

  // Chooses the next token of a slot's text, and frees the slot where the text ends.
  void take(int64_t slot, const at::Tensor& logits) {
    const size_t index = *prompt_of_[static_cast<size_t>(slot)];
    std::vector<int64_t>& held = g_.held_[static_cast<size_t>(slot)];
    Continuation& continuation = result_.continuations[index];
    const int64_t id = sampler_.pick({logits.data_ptr<float>(), static_cast<size_t>(logits.numel())}, held);
    continuation.ids.push_back(id);
    held.push_back(id);  // the cache gets it with the next step
    const bool goes_on = !on_token_ || on_token_(index, id);
    std::optional<StopReason> end;
    if (std::ranges::count(options_.stop_tokens, id) > 0)
      end = StopReason::kStopToken;
    else if (!goes_on)
      end = StopReason::kCaller;
    else if (static_cast<int64_t>(continuation.ids.size()) == options_.max_new_tokens)
      end = StopReason::kLength;
    if (!end) return;
    continuation.stopped_by = *end;
    held.pop_back();
    prompt_of_[static_cast<size_t>(slot)].reset();
    std::erase(active_, slot);
  }

  Generator& g_;
  std::span<const std::vector<int64_t>> prompts_;
  const GenerateOptions& options_;
  const OnToken& on_token_;
  Sampler sampler_;
  std::vector<std::optional<size_t>> prompt_of_;  // per slot
  std::vector<int64_t> active_, last_;
  size_t next_ = 0;
  Clock::time_point begin_ = Clock::now();
  Generated result_;
};

void check_generates(const arch::ModelConfig& model) {
  if (!model.has_experts() || model.experts.router != config::Router::kExpertChoice) return;
  throw ConfigError({.code = "LS1340",
                     .what = "[model] router = \"expert_choice\" cannot generate: which experts a token gets depends on tokens that come after it",
                     .way_out = "generate with a model whose tokens choose their experts"});
}

Generator::Generator(model::Decoder& decoder, const arch::ModelConfig& model, int64_t slots, int64_t capacity)
    : decoder_(decoder), model_(model), cache_(decoder.new_cache(slots, capacity)), held_(static_cast<size_t>(slots)) {
  check_generates(model);
}

Generated Generator::generate(std::span<const std::vector<int64_t>> prompts, const GenerateOptions& options,
                              const OnToken& on_token) {
  for (const std::vector<int64_t>& prompt : prompts)
    check_prompt(model_, prompt, options.max_new_tokens, cache_.capacity());
  return Round(*this, prompts, options, on_token).run();
}

}  // namespace lockstep::infer
