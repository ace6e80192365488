#include "lockstep/infer/generate.h"

#include <ATen/ops/tensor.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::infer {
namespace {

void check_prompt(const arch::ModelConfig& model, const std::vector<int64_t>& prompt, int64_t max_new_tokens) {
  const auto length = static_cast<int64_t>(prompt.size());
  if (length == 0) throw DataError({.code = "LS1241", .what = "the prompt has no token"});
  for (int64_t i = 0; i < length; ++i) {
    const int64_t id = prompt[static_cast<size_t>(i)];
    if (id < 0 || id >= model.vocab_size)
      throw DataError({.code = "LS1241",
                       .what = cat("prompt token ", i, " is ", id, ", but the model's vocabulary has ", model.vocab_size)});
  }
  if (length + max_new_tokens > model.max_seq_len)
    throw DataError({.code = "LS1241",
                     .what = cat("prompt(", length, ") + max_new_tokens(", max_new_tokens, ") = ", length + max_new_tokens,
                                 ", but the model's max_seq_len is ", model.max_seq_len),
                     .way_out = length < model.max_seq_len
                                    ? cat("use --max-new-tokens ", model.max_seq_len - length)
                                    : "use a shorter prompt"});
}

}  // namespace

std::vector<int64_t> generate(model::Decoder& decoder, const arch::ModelConfig& model, const std::vector<int64_t>& prompt,
                              const GenerateOptions& options, const std::function<void(int64_t)>& on_token) {
  check_prompt(model, prompt, options.max_new_tokens);
  const auto length = static_cast<int64_t>(prompt.size());
  model::KvCache cache = decoder.new_cache(1, length + options.max_new_tokens);
  std::vector<int64_t> continuation, next = prompt;
  for (int64_t i = 0; i < options.max_new_tokens; ++i) {
    const at::Tensor ids = at::tensor(next, at::kLong).unsqueeze(0);             // [1, T]
    const at::Tensor logits = decoder.append(ids, cache).cpu().contiguous();    // [1, V]
    const int64_t id = pick_token({logits.const_data_ptr<float>(), static_cast<size_t>(logits.numel())}, options.sampling,
                                  length + i);
    continuation.push_back(id);
    if (on_token) on_token(id);
    if (id == options.stop_token) break;
    next = {id};
  }
  return continuation;
}

}  // namespace lockstep::infer
