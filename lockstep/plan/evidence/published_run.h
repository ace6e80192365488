// Runs that others have published, as rows of a file like published_runs.json (schema 2): what was trained on what, and how it was laid out.
// What was measured is not here but in measured_run.h: a prediction is a function of these types alone and cannot see it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::plan {

// Sizes of the model of a row. What its source does not print is not set.
struct RunModel {
  struct Experts {
    int64_t count = 0, per_token = 0, ffn = 0;  // ffn: of each
    int64_t shared_ffn = 0;                     // of the expert that every token goes through; 0: none
    int64_t dense_layers = 0;                   // blocks, the first ones, with an MLP instead
    int64_t prediction_layers = 0;              // that predict a further token each (DeepSeek-V3's MTP), beside `layers`
    bool operator==(const Experts&) const = default;
  };
  struct Latent {
    int64_t q_rank = 0, kv_rank = 0, nope = 0, rope = 0, value = 0;
    bool operator==(const Latent&) const = default;
  };
  struct Window {
    int64_t tokens = 0;  // that a query sees
    int64_t layers = 0;  // that have it; the others see all
    bool operator==(const Window&) const = default;
  };
  std::string id{};
  std::optional<int64_t> layers{}, hidden{}, heads{}, kv_heads{}, head_dim{}, ffn{}, vocab{}, seq{};
  std::optional<double> params{};
  std::optional<bool> gated{};
  std::string activation{};
  std::optional<Experts> experts{};
  std::optional<Latent> latent{};
  std::optional<Window> window{};
  bool operator==(const RunModel&) const = default;
};

// How it was laid out, in the words of the source.
struct RunLayout {
  std::optional<int64_t> tp{}, pp{}, vpp{}, dp{}, cp{}, ep{}, etp{};
  std::optional<int64_t> micro_batch{}, global_batch{}, microbatches{};  // sequences, sequences, of a step
  std::optional<int64_t> zero{};
  std::optional<bool> sequence_parallel{};
  std::optional<std::string> recompute{}, schedule{};
  std::string precision{};  // empty: not printed
  bool operator==(const RunLayout&) const = default;
};

struct PublishedRun {
  std::string id{}, source{};
  std::string tier{};  // "A" all is known, "B" something is assumed, "C" weak; may be empty
  RunModel model{};
  std::string device{};  // a name of devices: cluster/device_table.h
  int gpus = 0;          // 0: not printed
  RunLayout layout{};
  std::vector<std::string> flags{};  // oddities of the row, as the file names them
  std::string problem{};             // why the row cannot be read: "run 17: layout.tp is \"eight\", not a whole number"; empty: it can
  // Words of its notes: operations one by one ("eager"), or joined by a compiler ("torch.compile") or by hand ("fused"); tensor parallelism that
  // overlaps its gathers ("AsyncTP").
  bool eager = false, compiled = false, fused = false, async = false;
};

// What is known of the machine of a source.
struct RunSource {
  std::string title{};
  std::optional<int> gpus_per_node{};
  std::string network{};  // in words: "400 Gb/s per GPU"; empty: not printed
  bool operator==(const RunSource&) const = default;
};

struct PublishedRuns {
  std::string origin{};  // the file
  std::map<std::string, RunSource> sources{};
  std::vector<PublishedRun> runs{};
};

// `text` is an object with "runs" and perhaps "sources", the list of runs alone, or a run on every line. Keys that are not known here are left
// unread; null counts as missing. A row in which a value has another type is there, with its problem. One of n_gpus, tp and pp that is missing
// follows from the others: they are tp cp pp dp. DataError LS1205 for text that is not JSON, LS1261 for JSON without a list of runs.
PublishedRuns parse_published_runs(std::string_view text, std::string_view origin);
PublishedRuns read_published_runs(const std::filesystem::path& path);

}  // namespace lockstep::plan
