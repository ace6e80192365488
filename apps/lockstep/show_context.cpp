#include "apps/lockstep/show_context.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "lockstep/config/fields.h"
#include "lockstep/data/sampler.h"

namespace lockstep::apps {
namespace {

using program::Layout;

double rate(const CommandLine& command_line, const char* flag) {
  if (!command_line.has(flag)) return 0;
  const double number = command_line.number(flag, 0);
  if (!(number > 0)) reject("LS1005", cat("--", flag, " ", command_line.value(flag), ": a number above 0 is needed"));
  return number;
}

// Where documents of these lengths begin; what is left of the sequence is one more.
std::vector<int32_t> documents_of(const std::string& lengths, const Layout& layout) {
  std::vector<int32_t> begins;
  int64_t end = 0;
  for (const std::string& word : split(lengths, ',')) {
    const auto length = parse_number<int32_t>(word);
    if (!length || *length < 1) reject("LS1005", cat("--documents ", lengths, ": lengths in tokens are needed, 1 or more each"));
    begins.push_back(static_cast<int32_t>(end));
    end += *length;
  }
  if (end > layout.seq_len)
    reject("LS1004", cat("--documents ", lengths, ": ", end, " tokens, and a sequence has ", layout.seq_len), "fewer or shorter documents, or --train.seq_len=N");
  if (end < layout.seq_len) begins.push_back(static_cast<int32_t>(end));
  return begins;
}

// Documents of the first sequences of a run.
void read_sequences(const CommandLine& command_line, const config::RunConfig& config, const Layout& layout, program::ContextQuestion& question) {
  constexpr int64_t kMost = 100'000;
  const int64_t wanted = command_line.integer_within("sequences", 1, 1, kMost);
  if (config.data.train.empty()) reject("LS1004", "--sequences: data.train names no token file", "--data.train=PREFIX");
  const data::Sampler sampler(std::make_shared<const data::TokenFile>(config.data.train),
                              data::training_samples(config, layout.seq_len, layout.global_batch));
  for (int64_t i = 0; i < std::min(wanted, sampler.samples_per_epoch()); ++i) question.sequences.push_back(sampler.window(i).documents());
  question.about_sequences = sampler.packing() ? data::packing_text(sampler.packing()->figures())
                                               : cat(sampler.tokens().num_documents(), " documents end to end, ", sampler.samples_per_epoch(),
                                                     " sequences of ", layout.seq_len, " tokens");
}

OrderedJson stretches_of(const std::vector<int32_t>& places) {
  OrderedJson json = OrderedJson::array();
  for (size_t i = 0; i < places.size();) {
    size_t end = i + 1;
    while (end < places.size() && places[end] == places[end - 1] + 1) ++end;
    json.push_back({places[i], places[end - 1] + 1});
    i = end;
  }
  return json;
}

OrderedJson balance_json(const program::RingBalance& balance, const program::ContextQuestion& question) {
  OrderedJson json = {{"bytes_of_a_token", balance.bytes}, {"flops_of_a_pair", balance.flops}, {"share", balance.share}, {"intensity", balance.intensity()}};
  if (question.flops > 0 && question.bandwidth > 0) json["hidden_from"] = balance.intensity() * question.flops / question.bandwidth;
  return json;
}

bool is_ring(const Layout& layout) { return layout.context == config::ContextKind::kRing || layout.context == config::ContextKind::k2d; }

}  // namespace

program::ContextQuestion context_question(const CommandLine& command_line, const config::RunConfig& config, const Layout& layout) {
  program::ContextQuestion question{.flops = rate(command_line, "flops"), .bandwidth = rate(command_line, "bandwidth")};
  if (command_line.has("flops") != command_line.has("bandwidth"))
    reject("LS1004", "--flops without --bandwidth, or the other way round", "a machine has both");
  for (const char* flag : {"documents", "sequences"})
    if (command_line.has(flag) && !layout.document_mask)
      reject("LS1004", cat("--", flag, ": without data.document_mask the documents of a sequence see each other"), "--data.document_mask=true");
  if (command_line.has("documents")) question.documents = documents_of(command_line.value("documents"), layout);
  if (command_line.has("sequences")) read_sequences(command_line, config, layout, question);
  return question;
}

OrderedJson context_json(const Layout& layout, const program::ContextQuestion& question) {
  const std::vector<int> ranks = program::context_ranks(layout);
  OrderedJson json = {{"cp", ranks.size()}, {"mode", config::name_of(layout.context)}, {"split", config::name_of(layout.context_split)}};
  if (ranks.size() == 1) return json;
  const auto places = program::tokens_of_ranks(layout, layout.context_split, question.documents);
  for (size_t i = 0; i < ranks.size(); ++i) json["ranks"].push_back({{"rank", ranks[i]}, {"tokens", stretches_of(places[i])}});
  for (const program::ContextBytes& mode : program::context_bytes(layout))
    json["modes"].push_back({{"mode", program::text_of(mode)}, {"forward", mode.forward}, {"backward", mode.backward}});
  if (!is_ring(layout) || program::attention_layers(layout.model).empty()) return json;
  if (const int64_t ends = program::window_ends(layout); ends > 0) {  // nothing goes round
    json["window_ends"] = ends;
    return json;
  }
  for (const auto split : {config::ContextSplit::kZigzag, config::ContextSplit::kContiguous}) {
    const program::RingWork work = program::ring_work(layout, split, question.documents);
    json["work"][config::name_of(split)] = {{"pairs", work.pairs}, {"imbalance", work.imbalance()}};
  }
  for (const std::vector<int32_t>& documents : question.sequences) {
    const program::RingWork work = program::ring_work(layout, layout.context_split, documents);
    json["sequences"].push_back({{"documents", documents.size()}, {"busiest", work.busiest()}, {"imbalance", work.imbalance()}});
  }
  const auto [forward, backward] = program::ring_balances(layout);
  json["ring"] = {{"forward", balance_json(forward, question)}, {"backward", balance_json(backward, question)}};
  return json;
}

}  // namespace lockstep::apps
