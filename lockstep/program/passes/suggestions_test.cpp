// Every way out that a refusal offers is taken: it gives a layout, or leaves fewer problems, until there are none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <random>
#include <set>

#include "lockstep/arch/hf_config.h"
#include "lockstep/arch/layer_description.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/config/fields.h"
#include "lockstep/config/suggestion.h"
#include "lockstep/data/test_files.h"
#include "lockstep/program/passes/job.h"
#include "lockstep/program/placement.h"
#include "support/folders.h"

namespace lockstep::program {
namespace {

namespace fs = std::filesystem;
using config::LayoutProblem;
using config::Suggestion;
using config::Trial;

using Flags = std::vector<config::Override>;

// What is wrong with the job, and the code of it; empty where it has a layout.
std::vector<LayoutProblem> problems_of(const Trial& trial, std::string* code = nullptr) {
  config::LoadedConfig loaded = trial.loaded;
  try {
    layout_of(loaded, trial.world_size);
  } catch (const config::RefusedConfig& refused) {
    if (code) *code = refused.message().code;
    return refused.problems();
  }
  return {};
}

// Fewer problems, or such as are judged later.
bool is_further(const std::vector<LayoutProblem>& before, const std::vector<LayoutProblem>& after) {
  if (after.empty()) return true;
  if (after[0].depth != before[0].depth) return after[0].depth > before[0].depth;
  return after.size() < before.size();
}

struct Count {
  int taken = 0;
  int files = 0;      // ways out behind which a file is met that nobody can read
  int elsewhere = 0;  // problems that are mended beside the configuration alone
  int without = 0;    // problems that offer nothing at all
};

// Takes each way out of each problem, and from there the first of each, to the end.
void take_all(const Trial& trial, Count& count, bool every = true) {
  const std::vector<LayoutProblem> problems = problems_of(trial);
  for (const LayoutProblem& problem : problems) {
    EXPECT_EQ(problem.depth, problems[0].depth);
    if (problem.ways.empty()) ++(problem.elsewhere.empty() ? count.without : count.elsewhere);
    std::vector<std::vector<config::Change>> offered;
    for (const Suggestion& way : problem.ways) {
      EXPECT_EQ(std::count(offered.begin(), offered.end(), way.changes), 0) << text_of(problem.ways);
      offered.push_back(way.changes);
      SCOPED_TRACE(cat(problem.what, " -> ", text_of(way)));
      const std::optional<Trial> changed = config::with_changes(trial, way);
      ASSERT_TRUE(changed);
      ++count.taken;
      try {
        EXPECT_TRUE(is_further(problems, problems_of(*changed)));
        if (!::testing::Test::HasFailure()) take_all(*changed, count, false);
      } catch (const DataError&) {
        ++count.files;
      }
      if (!every) break;
    }
    if (!every) break;
  }
}

Trial job(const std::string& text, int ranks) { return {.loaded = config::load_config_text(text, "run.toml"), .world_size = ranks}; }
Trial job(const Flags& flags, int ranks) { return {.loaded = config::load_config({}, flags), .world_size = ranks}; }

template <typename Text>
std::string way_out_of(const Text& text, int ranks) {
  const std::vector<LayoutProblem> problems = problems_of(job(text, ranks));
  std::vector<std::string> ways;
  for (const LayoutProblem& problem : problems) ways.push_back(problem.way_out());
  return join(ways, " | ");
}

// The folder of the files that configurations name here.
class Files {
 public:
  Files() {
    constexpr const char* kMistral =
        R"({"model_type": "mistral", "architectures": ["MistralForCausalLM"], "hidden_size": 16, "intermediate_size": 32,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 300,
            "max_position_embeddings": 64, "sliding_window": 32, "rms_norm_eps": 1e-05})";
    constexpr const char* kGpt2 =
        R"({"model_type": "gpt2", "n_embd": 16, "n_head": 4, "n_layer": 2, "n_positions": 32, "vocab_size": 300})";
    write("mistral/config.json", kMistral);
    write("mistral/tokenizer.json", data::trained_json(280));
    write("gpt2/config.json", kGpt2);
    write("lacks/config.json", R"({"model_type": "gpt2"})");
    write("relu/config.json", cat(R"({"activation_function": "relu", )", std::string(kGpt2).substr(1)));
    write("600.json", data::trained_json(600));
    write("cells.csv", "0F0,0B0\n1F0,1Q0\n");
    write("two.csv", "0F0,0F1,2F0,2F1,0F2,2B0,0F3,2B1,2F2,0B0,2F3,0B1,2B2,2B3,0B2,0B3\n"
                     "1F0,1F1,3F0,3B0,3F1,3B1,1F2,1B0,1F3,1B1,3F2,3B2,3F3,3B3,1B2,1B3\n");
    write("odd.csv", "0F0,0B0,2F0,2B0\n1F0,1B0\n");
  }
  std::string at(const char* name) const { return (folder_ / name).string(); }
  std::string grid(const char* name) const { return cat("file:", at(name)); }

 private:
  void write(const char* name, const std::string& text) const {
    fs::create_directories((folder_ / name).parent_path());
    write_file(folder_ / name, text);
  }
  const support::ScopedFolder folder_{"suggestions"};
};

TEST(Suggestions, ADegreeSuitsAllThatItDivides) {
  // 12 heads, 4 key/value heads, 8 ranks: 6 divides neither 4 nor 8, 12 is more than there are.
  EXPECT_EQ(way_out_of("[model]\npreset = \"llama-test\"\n[parallel]\ntp = 8\n", 8), "use tp 4 or 2");
  EXPECT_EQ(way_out_of("[model]\npreset = \"llama-test\"\n[parallel]\ntp = 8\ndp = 1\n", 8), "use tp 4 with -n 4");
  EXPECT_EQ(way_out_of("[model]\npreset = \"llama-test\"\nlayers = 4\n[parallel]\npp = 8\n", 8), "use pp 4 or 2");
}

TEST(Suggestions, WhatFollowsOfAChangeIsSaid) {
  EXPECT_EQ(way_out_of("[model]\npreset = \"llama-test\"\n[parallel]\ntp = 5\n[train]\nglobal_batch = 8\nmicro_batch = 8\n", 5),
            "use tp 4 with -n 4");
  EXPECT_EQ(way_out_of("[model]\npreset = \"llama-test\"\n[parallel]\nvirtual_stages = 2\n", 4),
            "leave virtual_stages out");
}

TEST(Suggestions, TheTokenizerIsReadWhereAChangeIsTried) {
  const Files files;
  const Flags flags = {{"data.tokenizer", files.at("600.json")}, {"parallel.dp", "2"}};  // of preset gpt2-10m, which has no vocabulary
  EXPECT_EQ(way_out_of(flags, 3), "use dp 3, or -n 2");
  Flags missing = flags;
  missing[0].value = files.at("700.json");
  EXPECT_EQ(way_out_of(missing, 3), "use dp 3, or -n 2");
}

TEST(Suggestions, WhatIsMendedInAFileIsSaidBesideWhatIsNot) {
  const Files files;
  const Flags flags = {{"model.preset", "gpt2-test"}, {"model.layers", "6"}, {"train.global_batch", "4"}, {"train.micro_batch", "1"},
                       {"parallel.pp", "4"}, {"parallel.schedule", files.grid("two.csv")}};
  EXPECT_EQ(way_out_of(flags, 4), "use pp 2 with -n 2, or write a grid with a row for every rank");
}

// What mends a refusal.
enum class Mended { kHere, kElsewhere, kInAFile, kNowhere };

struct Case {
  const char* code;
  Flags flags;
  int ranks = 1;
  Mended mended = Mended::kHere;
  const char* family = nullptr;  // of the struct: a file with it is refused while it is read
};

std::vector<Case> model_cases(const Files& files) {
  const std::string mistral = files.at("mistral"), gpt2 = files.at("gpt2");
  const config::Override vocabulary{"model.vocab_size", "512"};
  return {
      {"LS1110", {{"model.preset", "llama-test"}, {"model.heads", "6"}}},
      {"LS1110", {{"model.preset", "llama-test"}, {"model.kv_heads", "5"}}},
      {"LS1110", {{"model.preset", "llama-test"}, {"model.head_size", "3"}}},
      {"LS1110", {{"model.preset", "llama-test"}, {"model.hidden", "50"}, {"model.heads", "6"}}},
      {"LS1110", {{"model.preset", "gpt2-test"}, {"model.kv_heads", "4"}}},
      {"LS1110", {{"model.preset", "gpt2-test"}, {"model.hidden", "50"}}},
      {"LS1110", {{"model.preset", "gpt2-test"}, {"model.hidden", "7"}}},
      {"LS1110", {{"model.preset", "gpt2-test"}, {"model.layers", "100000"}}},
      {"LS1110", {{"model.layers", "2"}, {"model.hidden", "9000000000"}, {"model.heads", "4"}, vocabulary}},
      {"LS1110", {{"model.layers", "60000"}, {"model.hidden", "1048576"}, {"model.heads", "64"}, vocabulary}},
      {"LS1110", {{"model.preset", "gpt2-test"}, {"model.ffn", "2147483648"}, {"model.layers", "65536"}}},
      {"LS1111", {{"model.preset", "gpt2-tset"}}},
      {"LS1111", {{"model.preset", "gpt2-10n"}}},
      {"LS1111", {{"model.preset", "something"}}},
      {"LS1111", {{"model.preset", "something"}, {"model.heads", "5"}}, 1, Mended::kHere, "other"},
      {"LS1112", {{"model.preset", "gpt2-test"}}, 1, Mended::kHere, "lama"},
      {"LS1112", {{"model.preset", "llama-test"}}, 1, Mended::kHere, "something"},
      {"LS1113", {{"model.hidden", "192"}, vocabulary}},
      {"LS1113", {{"model.family", "llama"}, {"model.heads", "5"}, vocabulary}},
      {"LS1113", {{"model.layers", "3"}}},
      {"LS1113", {{"model.hidden", "193"}, {"model.heads", "12"}, vocabulary}},
      {"LS1114", {}},
      {"LS1114", {{"model.layers", "2"}, {"model.hidden", "64"}, {"model.heads", "4"}}},
      {"LS1115", {{"model.from", files.at("none")}}, 1, Mended::kInAFile},
      {"LS1116", {{"model.from", mistral}, {"model.preset", "gpt2-test"}, {"model.layers", "3"}}},
      {"LS1116", {{"model.from", gpt2}, {"model.max_seq_len", "16"}}},
      {"LS1116", {{"model.from", files.at("relu")}, {"model.layers", "3"}}},
      {"LS1117", {{"model.from", files.at("lacks")}}, 1, Mended::kInAFile},
      {"LS1118", {{"model.from", files.at("relu")}}, 1, Mended::kInAFile},
      {"LS1120", {{"model.preset", "gpt2-test"}, {"data.tokenizer", files.at("600.json")}}},
      {"LS1120", {{"model.preset", "gpt2-10m"}, {"data.tokenizer", files.at("600.json")}, vocabulary}},
      {"LS1120", {{"model.from", mistral}, {"data.tokenizer", files.at("600.json")}}},
      {"LS1120", {{"model.from", gpt2}, {"data.tokenizer", files.at("600.json")}}, 1, Mended::kElsewhere},
      {"LS1121", {{"model.preset", "gpt2-test"}, {"train.seq_len", "65"}}},
      {"LS1121", {{"model.from", mistral}, {"train.seq_len", "65"}}},
      {"LS1121", {{"model.from", gpt2}, {"train.seq_len", "33"}}},
  };
}

std::vector<Case> layout_cases(const Files& files) {
  const config::Override small{"model.preset", "gpt2-test"}, six{"model.layers", "6"};
  const config::Override batch{"train.global_batch", "4"}, one{"train.micro_batch", "1"}, two{"parallel.pp", "2"};
  const auto grid = [&](const char* name) { return config::Override{"parallel.schedule", files.grid(name)}; };
  return {
      {"LS1101", {small, {"parallel.dp_replicate", "65536"}, {"parallel.dp_shard", "65536"}}, 8},
      {"LS1101", {small, {"parallel.cp", "3"}}, 4},
      {"LS1101", {small, {"parallel.cp", "16"}, {"parallel.context", "all_to_all"}}, 16},
      {"LS1101", {small, {"parallel.cp", "4"}, {"parallel.context", "2d"}}, 4},
      {"LS1101", {small, {"parallel.cp", "4"}, {"parallel.context_inner", "2"}}, 4},
      {"LS1101", {small, {"parallel.cp", "4"}, {"train.seq_len", "7"}}, 4},
      {"LS1101", {small, {"data.reset_positions", "true"}, {"data.document_mask", "false"}}},
      {"LS1101", {small, {"parallel.tp", "1048576"}, {"parallel.pp", "4"}}, 8},
      {"LS1101", {small, {"model.head_size", "264"}, {"train.precision", "bf16"}, {"train.device", "cuda"}}},
      {"LS1101", {small, {"parallel.tp", "12"}, {"parallel.dp", "131072"}}, 12},
      {"LS1101", {small}, 2000000},
      {"LS1101", {small, {"parallel.dp", "4"}}, 2000000},
      {"LS1101", {small, {"train.global_batch", "100000000"}}},
      {"LS1101", {small, two, {"model.layers", "60000"}}, 2},
      {"LS1101", {small, {"model.max_seq_len", "1073741824"}, {"train.seq_len", "1073741824"}, {"train.micro_batch", "1073741824"},
                  {"train.global_batch", "1073741824"}}},
      {"LS1101", {small, six, batch, one, {"parallel.pp", "4"}, grid("two.csv")}, 4},
      {"LS1101", {small, six, batch, one, two, {"parallel.virtual_stages", "3"}, grid("two.csv")}, 2},
      {"LS1101", {small, six, {"train.global_batch", "7"}, one, two, grid("two.csv")}, 2},
      {"LS1101", {small, six, {"train.global_batch", "1"}, one, two, grid("odd.csv")}, 2, Mended::kElsewhere},
      {"LS1101", {small, six, {"train.global_batch", "1"}, one, two, grid("cells.csv")}, 2, Mended::kElsewhere},
      {"LS1101", {small, two, grid("none.csv")}, 2},
      {"LS1101", {small, six, {"train.global_batch", "12"}, one, {"parallel.pp", "4"}, {"parallel.dp", "2"},
                  {"parallel.schedule", "interleaved"}}, 8},
      {kHostLimitCode, {small, {"memory.offload", "optimizer"}, {"memory.host_limit", "1KiB"}}},
      {kHostLimitCode, {small, {"memory.offload", "optimizer,parameters"}, {"memory.host_limit", "1MiB"}}, 4},
  };
}

// Takes all that is offered; what mends the first problem is what the case says.
void take(const Case& one, Count& count) {
  std::vector<std::string> said;
  for (const config::Override& flag : one.flags) said.push_back(cat("--", flag.key, "=", flag.value));
  SCOPED_TRACE(cat(one.code, ": -n ", one.ranks, " ", join(said, " ")));
  Trial trial = job(one.flags, one.ranks);
  if (one.family) trial.loaded.config.model.family = one.family;
  std::string code;
  Mended mended = Mended::kInAFile;
  try {
    const std::vector<LayoutProblem> problems = problems_of(trial, &code);
    ASSERT_FALSE(problems.empty());
    const LayoutProblem& first = problems.front();
    mended = !first.ways.empty() ? Mended::kHere : !first.elsewhere.empty() ? Mended::kElsewhere : Mended::kNowhere;
    take_all(trial, count);
  } catch (const DataError& error) {  // a file is not what it should be: no change of the configuration is offered
    code = error.message().code;
  }
  EXPECT_EQ(code, one.code);
  EXPECT_EQ(mended, one.mended);
}

// Codes of the form LS1234 that stand between these.
std::set<std::string> codes_between(const std::string& before, const std::string& text, const std::string& after) {
  constexpr size_t kLength = 6;
  std::set<std::string> codes;
  for (size_t at = text.find(before + "LS"); at != std::string::npos; at = text.find(before + "LS", at + 1)) {
    const size_t begin = at + before.size();
    if (text.compare(begin + kLength, after.size(), after) == 0) codes.insert(text.substr(begin, kLength));
  }
  return codes;
}

// Those that docs/errors.md lists of layout and model, without those that ranks at work alone refuse.
std::set<std::string> codes_of_configurations() {
  const std::string source = LOCKSTEP_SOURCE_DIR, page = read_file(source + "/docs/errors.md");
  const size_t begin = page.find("### Layout and model"), end = page.find("\n### ", begin + 1);
  std::set<std::string> thrown, codes;
  for (const std::string& line : split(read_file(source + "/cmake/rooms.txt"), '\n')) {
    const std::vector<std::string> words = split(line, ' ');
    if (words.size() != 3 || words[2] != "core") continue;
    for (const auto& entry : fs::directory_iterator(source + "/lockstep/" + words[1])) {
      const std::string name = entry.path().filename();
      if (name.ends_with(".h") || (name.ends_with(".cpp") && !name.ends_with("_test.cpp")))
        thrown.merge(codes_between("\"", read_file(entry.path()), "\""));
    }
  }
  for (const std::string& code : codes_between("| ", page.substr(begin, end - begin), " |"))
    if (thrown.contains(code)) codes.insert(code);
  return codes;
}

// A model that is there has no config.json of Hugging Face: nothing can be changed any more, and nothing is offered.
std::string code_of_export() {
  try {
    arch::hf_config_json(arch::resolve_model({.preset = "gpt2-test", .head_size = 8}));
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.message().way_out, "");
    return error.message().code;
  }
  return "written";
}

// Nor has a model from a checkpoint or a program a field that says its branches.
std::string code_of_blocks() {
  arch::ModelConfig model = arch::resolve_model({.preset = "gpt2-test"});
  model.blocks = {{{.kind = "mlp", .name = "mlp", .beside = true}}};
  try {
    arch::block_branches(model, 1);
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.message().way_out, "");
    return error.message().code;
  }
  return "described";
}

TEST(Suggestions, EveryRefusalOfTheTableIsMendedByWhatItOffers) {
  const Files files;
  Count count;
  std::set<std::string> judged = {code_of_export(), code_of_blocks()};
  for (const std::vector<Case>& cases : {model_cases(files), layout_cases(files)})
    for (const Case& one : cases) take(one, count), judged.insert(one.code);
  EXPECT_GT(count.taken, 60);
  const std::set<std::string> codes = codes_of_configurations();
  EXPECT_GE(codes.size(), 12u);
  for (const std::string& code : codes) EXPECT_TRUE(judged.contains(code)) << code << " has no case";
}

TEST(Suggestions, WhatIsSaidOfAModel) {
  const Files files;
  EXPECT_EQ(way_out_of(Flags{}, 1), "set model.vocab_size, or name a tokenizer in data.tokenizer");
  EXPECT_EQ(way_out_of(Flags{{"model.preset", "gpt2-tset"}}, 1), "did you mean 'gpt2-test'?");
  EXPECT_EQ(way_out_of(Flags{{"model.preset", "llama-test"}, {"model.kv_heads", "5"}}, 1),
            "use model.kv_heads 4 or 6");
  EXPECT_EQ(way_out_of(Flags{{"model.from", files.at("mistral")}, {"model.layers", "3"}}, 1),
            "leave them out; dropout and max_seq_len may be set");
}

TEST(Suggestions, AModelIsRefusedWithThePlacesOfItsValues) {
  config::LoadedConfig loaded = job("[model]\npreset = \"llama-test\"\nhidden = 50\nkv_heads = 5\n", 1).loaded;
  try {
    layout_of(loaded, 1);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), ::testing::StartsWith("error LS1110: [model] these sizes do not fit:\n"
                                                    "  model.heads (not set)  hidden(50) % heads(12) = 2"));
    EXPECT_THAT(error.what(), ::testing::ContainsRegex("\n  run.toml:4 +heads.12. % kv_heads.5. = 2"));
  }
}

constexpr const char* kPresets[] = {"gpt2-test", "llama-test", "gpt2-10m"};
constexpr const char* kLines[] = {
    "parallel.tp=2", "parallel.tp=3", "parallel.tp=5", "parallel.tp=8", "parallel.tp=12", "parallel.pp=2", "parallel.pp=3",
    "parallel.pp=7", "parallel.dp=2", "parallel.dp=3", "parallel.dp=5", "parallel.zero=1", "parallel.zero=2", "parallel.zero=3",
    "parallel.fsdp=true", "parallel.dp_shard=2", "parallel.dp_shard=3", "parallel.dp_replicate=2", "parallel.dp_replicate=4",
    "parallel.data_parallel=parameter_server", "parallel.reduce_precision=bf16", "parallel.schedule=interleaved",
    "parallel.schedule=zb-v", "parallel.schedule=gpipe", "parallel.virtual_stages=2", "parallel.virtual_stages=3",
    "parallel.layers_per_stage=1*3", "parallel.layers_per_stage=2,0,1", "parallel.post_validation=on", "train.global_batch=7",
    "train.global_batch=12", "train.global_batch=200000000", "train.micro_batch=3", "train.micro_batch=5", "train.seq_len=600",
    "train.steps=20", "train.nonfinite=skip", "optimizer.warmup_steps=5000", "optimizer.min_lr=1", "memory.offload=parameters",
    "memory.offload=optimizer", "memory.offload=activations,optimizer", "memory.recompute=none,full", "memory.recompute=selective",
    "memory.host_limit=1GiB", "memory.disk_path=spill", "trace.steps=10-2000", "trace.steps=x", "model.kv_heads=6", "model.layers=1",
    "model.heads=6", "model.max_seq_len=32", "model.vocab_size=100", "model.kv_heads=5", "model.head_size=3", "model.hidden=50",
    "model.hidden=5000000000", "memory.host_limit=64KiB", "memory.offload=optimizer,parameters"};

TEST(Suggestions, AllOfManyRefusalsCanBeTaken) {
  std::mt19937 random(11);
  Count count;
  int refused = 0;
  for (int i = 0; i < 200 && !HasFailure(); ++i) {
    std::vector<config::Override> flags = {{"model.preset", kPresets[random() % 3]}, {"data.tokenizer", ""}};
    if (flags[0].value == "gpt2-10m") flags.push_back({"model.vocab_size", "8192"});
    std::string said;
    for (unsigned lines = 1 + random() % 4; lines > 0; --lines) {
      const std::string line = kLines[random() % std::size(kLines)];
      flags.push_back({line.substr(0, line.find('=')), line.substr(line.find('=') + 1)});
      said += " --" + line;
    }
    const int ranks = static_cast<int>(1 + random() % 12);
    SCOPED_TRACE(cat("-n ", ranks, " --model.preset=", flags[0].value, said));
    const Trial trial = job(flags, ranks);
    refused += !problems_of(trial).empty();
    take_all(trial, count);
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(count.taken, 300);
  EXPECT_LT(count.without, count.taken / 20);
}

}  // namespace
}  // namespace lockstep::program
