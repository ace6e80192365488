#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/config/check.h"
#include "lockstep/config/fields.h"
#include "lockstep/config/load.h"
#include "support/folders.h"

namespace lockstep::config {
namespace {

using ::testing::HasSubstr;

RunConfig read(std::string_view text) { return load_config_text(text, "run.toml").config; }

// The message of the ConfigError that the text or the overrides lead to.
std::string refusal(std::string_view text) {
  try {
    load_config_text(text, "run.toml");
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kUsage);
    return error.what();
  }
  return "accepted";
}

std::string refusal(const Override& item) {
  try {
    load_config({}, {item});
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

class Folder {
 public:
  Folder() { std::filesystem::create_directories(folder_ / "deep"); }
  std::filesystem::path write(const std::string& name, std::string_view text) const {
    write_file(folder_ / name, text);
    return folder_ / name;
  }

 private:
  const support::ScopedFolder folder_{"config"};
};

TEST(Config, ReadsEveryKindOfValue) {
  const RunConfig config = read(R"(
[run]
name = "a"
[model]
preset = "gpt2-10m"
layers = 3
tied = false
dropout = 0
[train]
steps = 20_000
precision = "bf16"
[optimizer]
lr = 1e-3
schedule = "wsd"
[parallel]
dp = 2
data_parallel = "parameter_server"
[checkpoint]
every = 200
)");
  EXPECT_EQ(config.run.name, "a");
  EXPECT_EQ(config.model.layers, 3);
  EXPECT_EQ(config.model.tied, false);
  EXPECT_EQ(config.model.dropout, 0.0);
  EXPECT_EQ(config.model.hidden, std::nullopt);
  EXPECT_EQ(config.train.steps, 20000);
  EXPECT_EQ(config.train.precision, Precision::kBf16);
  EXPECT_DOUBLE_EQ(config.optimizer.lr, 1e-3);
  EXPECT_EQ(config.optimizer.schedule, LrSchedule::kWsd);
  EXPECT_EQ(config.parallel.dp, 2);
  EXPECT_EQ(config.parallel.data_parallel, DataParallel::kParameterServer);
  EXPECT_EQ(config.checkpoint.every, (Interval{.steps = 200, .seconds = std::nullopt}));
  EXPECT_EQ(read("[checkpoint]\nevery = \"1h30m\"").checkpoint.every.seconds, 5400.0);
  EXPECT_EQ(read("[train]\ncomm_timeout = \"90s\"").train.comm_timeout.seconds, 90.0);
}

TEST(Config, DefaultsFollowFromOtherValues) {
  RunConfig expected;
  expected.run.dir = "runs/run";
  EXPECT_EQ(read(""), expected);
  EXPECT_EQ(read("[run]\nname = 'a'").run.dir, "runs/a");
  EXPECT_EQ(read("[run]\nname = 'a'\ndir = 'b'").run.dir, "b");
  EXPECT_DOUBLE_EQ(read("[optimizer]\nlr = 0.5").optimizer.min_lr, 0.05);
  EXPECT_DOUBLE_EQ(read("[optimizer]\nlr = 0.5\nmin_lr = 0.1").optimizer.min_lr, 0.1);
  EXPECT_EQ(read("[train]\nsteps = 50").optimizer.warmup_steps, 5);
  EXPECT_EQ(read("[train]\nsteps = 50_000").optimizer.warmup_steps, 100);
}

TEST(Config, UnknownKeyNamesTheNearest) {
  EXPECT_EQ(refusal("[train]\n\nstpes = 20_000\n"),
            "run.toml:3:1: error LS1042: unknown key 'train.stpes'\n"
            "    3 | stpes = 20_000\n"
            "      | ^~~~~ did you mean 'train.steps'?");
  EXPECT_THAT(refusal("[train]\n  lr = 1\n"), HasSubstr("      |   ^~ did you mean 'optimizer.lr'?"));
  EXPECT_THAT(refusal("[checkpoint]\nfrobnicate = 1\n"), HasSubstr("[checkpoint] has every, keep, asynchronous, stall_timeout, resume"));
  EXPECT_THAT(refusal("steps = 1\n"), HasSubstr("outside of any section\n    1 | steps = 1\n"
                                                "      | ^~~~~ did you mean 'train.steps'?"));
}

TEST(Config, UnknownSectionNamesTheNearest) {
  EXPECT_EQ(refusal("[trian]\nsteps = 1\n"),
            "run.toml:1:2: error LS1041: unknown section 'trian'\n"
            "    1 | [trian]\n"
            "      |  ^~~~~ did you mean 'train'?");
}

TEST(Config, WrongType) {
  EXPECT_EQ(refusal("[train]\nsteps = \"many\"\n"),
            "run.toml:2:9: error LS1043: train.steps = \"many\" is text\n"
            "    2 | steps = \"many\"\n"
            "      |         ^~~~~~ expected: integer >= 1");
  EXPECT_THAT(refusal("[train]\nsteps = 1e3\n"), HasSubstr("LS1043"));
  EXPECT_THAT(refusal("[train]\nsteps = [1]\n"), HasSubstr("LS1043: train.steps = [1] is a list"));
  EXPECT_THAT(refusal("[train]\nsteps = [1.5]\n"), HasSubstr("train.steps is a table, a date or a list of other things"));
  EXPECT_THAT(refusal("[data]\nshuffle = 1\n"), HasSubstr("expected: true | false"));
  EXPECT_THAT(refusal("model = \"hf:x\"\n"), HasSubstr("LS1043: model is a section"));
  EXPECT_THAT(refusal("[[train]]\nsteps = 1\n"), HasSubstr("LS1043: train is a section"));
}

TEST(Config, OutOfRange) {
  EXPECT_EQ(refusal("[optimizer]\nbeta1 = 1.0\n"),
            "run.toml:2:9: error LS1044: optimizer.beta1 = 1 is out of range\n"
            "    2 | beta1 = 1.0\n"
            "      |         ^~~ expected: number >= 0 and < 1");
  EXPECT_THAT(refusal("[optimizer]\nlr = 0\n"), HasSubstr("expected: number > 0"));
  EXPECT_THAT(refusal("[optimizer]\nlr = nan\n"), HasSubstr("LS1044"));
  EXPECT_THAT(refusal("[optimizer]\nlr = inf\n"), HasSubstr("LS1044"));
  EXPECT_THAT(refusal("[parallel]\ndp = 5_000_000_000\n"), HasSubstr("LS1044"));
  EXPECT_THAT(refusal("[train]\nsteps = 99999999999999999999\n"), HasSubstr("LS1040"));
}

TEST(Config, NoneOfTheChoices) {
  EXPECT_EQ(refusal("[train]\nprecision = \"fp31\"\n"),
            "run.toml:2:13: error LS1045: train.precision = \"fp31\" is none of fp32, bf16\n"
            "    2 | precision = \"fp31\"\n"
            "      |             ^~~~~~ did you mean \"fp32\"?");
  EXPECT_THAT(refusal("[model]\nfamily = \"rnn\"\n"), HasSubstr("expected: gpt2 | llama"));
}

TEST(Config, MissingUnit) {
  EXPECT_EQ(refusal("[checkpoint]\nevery = \"30\"\n"),
            "run.toml:2:9: error LS1046: checkpoint.every = \"30\" is not a duration with a unit\n"
            "    2 | every = \"30\"\n"
            "      |         ^~~~ write \"30min\", \"90s\" or \"2h\", or a number of steps without quotes");
}

TEST(Config, ADurationAloneIsNoNumberAndNotZero) {
  EXPECT_THAT(refusal("[train]\ncomm_timeout = 30\n"), HasSubstr("error LS1046: train.comm_timeout = 30"));
  EXPECT_THAT(refusal("[train]\ncomm_timeout = \"0s\"\n"), HasSubstr("error LS1044: train.comm_timeout = \"0s\""));
}

TEST(Config, NotToml) {
  EXPECT_THAT(refusal("[train]\nsteps = \n"), HasSubstr("run.toml:2:"));
  EXPECT_THAT(refusal("[train]\nsteps = \n"), HasSubstr("error LS1040: not TOML"));
  EXPECT_THAT(refusal("[train]\nsteps = 1\nsteps = 2\n"), HasSubstr("LS1040"));
}

TEST(Config, AllProblemsAtOnce) {
  const std::string text = refusal("[train]\nstpes = 1\nseq_len = 0\n[optimiser]\nlr = 1\n");
  EXPECT_THAT(text, HasSubstr("run.toml:2:1: error LS1042"));
  EXPECT_THAT(text, HasSubstr("\nrun.toml:3:11: error LS1044"));
  EXPECT_THAT(text, HasSubstr("\nrun.toml:4:2: error LS1041"));
}

TEST(Config, Overrides) {
  const auto loaded = load_config({}, {{"train.steps", "20_000"},
                                       {"run.name", "7"},
                                       {"train.precision", "bf16"},
                                       {"checkpoint.every", "10min"},
                                       {"data.shuffle", "false"},
                                       {"optimizer.lr", "1e-3"},
                                       {"train.steps", "5"}});
  EXPECT_EQ(loaded.config.train.steps, 5);
  EXPECT_EQ(loaded.config.run.name, "7");
  EXPECT_EQ(loaded.config.train.precision, Precision::kBf16);
  EXPECT_EQ(loaded.config.checkpoint.every.seconds, 600.0);
  EXPECT_FALSE(loaded.config.data.shuffle);
  EXPECT_DOUBLE_EQ(loaded.config.optimizer.lr, 1e-3);
  EXPECT_EQ(loaded.origin.at("train.steps"), "--train.steps");
  EXPECT_EQ(refusal(Override{"train.stpes", "5"}),
            "--train.stpes=5: error LS1042: unknown key 'train.stpes'\n  did you mean 'train.steps'?");
  EXPECT_EQ(refusal(Override{"train.steps", "5x"}),
            "--train.steps=5x: error LS1043: train.steps = \"5x\" is text\n  expected: integer >= 1");
  EXPECT_THAT(refusal(Override{"steps", "5"}), HasSubstr("LS1041"));
}

TEST(Config, LayersAndOrigins) {
  const Folder folder;
  folder.write("deep/base.toml", "[train]\nsteps = 1\nseq_len = 64\nseed = 5\n");
  const auto first = folder.write("first.toml", "extends = \"deep/base.toml\"\n[train]\nsteps = 2\nmicro_batch = 4\n");
  const auto second = folder.write("second.toml", "[train]\nmicro_batch = 2\n");
  const LoadedConfig loaded = load_config({first, second}, {{"train.seed", "6"}});
  EXPECT_EQ(loaded.config.train.steps, 2);
  EXPECT_EQ(loaded.config.train.seq_len, 64);
  EXPECT_EQ(loaded.config.train.micro_batch, 2);
  EXPECT_EQ(loaded.config.train.seed, 6);
  EXPECT_EQ(loaded.origin.at("train.steps"), first.string() + ":3");
  EXPECT_EQ(loaded.origin.at("train.seq_len"), (first.parent_path() / "deep/base.toml:3").string());
  EXPECT_EQ(loaded.origin.at("train.micro_batch"), second.string() + ":2");
  EXPECT_EQ(loaded.origin.at("train.log_every"), "default");
}

TEST(Config, ExtendsStaysInItsFolderAndEnds) {
  const Folder folder;
  const auto outside = folder.write("deep/a.toml", "extends = \"../b.toml\"\n");
  const auto circle = folder.write("b.toml", "extends = \"b.toml\"\n");
  const auto missing = folder.write("c.toml", "extends = \"d.toml\"\n");
  EXPECT_THROW(load_config({outside}, {}), ConfigError);
  EXPECT_THROW(load_config({circle}, {}), ConfigError);
  EXPECT_THROW(load_config({missing}, {}), DataError);
  EXPECT_THROW(load_config({"no-such-run.toml"}, {}), DataError);
}

TEST(Config, ResolvedFileLoadsAgain) {
  LoadedConfig loaded = load_config({}, {{"model.layers", "3"}, {"optimizer.lr", "1.2345678901234567e-4"}});
  loaded.config.run.name = "a \"quoted\" \\ name\n\x01";
  loaded.config.checkpoint.every.seconds = 0.1;
  const std::string text = resolved_toml(loaded);
  EXPECT_EQ(load_config_text(text, "config.resolved.toml").config, loaded.config) << text;
  EXPECT_THAT(text, HasSubstr("layers = 3                                # --model.layers\n"));
  EXPECT_THAT(text, HasSubstr("# heads is not set\n"));
  EXPECT_THAT(text, HasSubstr("seed = 1234                               # default\n"));
  EXPECT_EQ(load_config_text(resolved_toml(load_config({}, {})), "x").config, load_config({}, {}).config);
}

std::string layout_refusal(const RunConfig& config, int world_size) {
  try {
    check_layout(config, world_size);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(CheckLayout, AllProblemsAtOnce) {
  RunConfig config;
  config.parallel.dp = 3;
  config.train.steps = 50;
  config.optimizer.min_lr = 1;
  EXPECT_EQ(layout_refusal(config, 4),
            "error LS1101: this layout does not fit the launch (4 problems, nothing was started)\n"
            "  parallel.dp             [mesh] dp(3) = 3, but 4 ranks were started                         "
            "use dp 4, or -n 3\n"
            "  train.global_batch      global_batch(32) is not a multiple of dp(3) * micro_batch(8) = 24  "
            "use global_batch 24 or 48\n"
            "  optimizer.warmup_steps  warmup_steps(100) > train.steps(50)                                "
            "use warmup_steps 50 or less\n"
            "  optimizer.min_lr        min_lr(1) > lr(3e-04)                                              "
            "use min_lr 3e-04 or less");
}

TEST(CheckLayout, NamesTheLineAValueCameFrom) {
  const LoadedConfig loaded = load_config_text("[parallel]\ndp = 3\n", "run.toml");
  try {
    check_layout(loaded, 1);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), ::testing::ContainsRegex("\n  run.toml:2 +\\[mesh\\] dp.3. = 3, but 1 rank was started"));
    EXPECT_THAT(error.what(), HasSubstr("\n  train.global_batch (not set)  global_batch(32)"));
  }
}

TEST(CheckLayout, BatchesThatFit) {
  RunConfig config;
  EXPECT_EQ(data_parallel_size(config, 4), 4);
  EXPECT_EQ(microbatches(config, 4), 1);
  EXPECT_EQ(microbatches(config, 1), 4);
  for (const int world : {1, 2, 4}) EXPECT_EQ(layout_refusal(config, world), "accepted");
  config.train.micro_batch = 7;
  EXPECT_THAT(layout_refusal(config, 1), HasSubstr("use global_batch 28 or 35, or micro_batch 4 or 8"));
  config.model.max_seq_len = 128;
  EXPECT_THAT(layout_refusal(config, 1), HasSubstr("seq_len(256) > model.max_seq_len(128)"));
}

TEST(CheckLayout, TensorParallelism) {
  RunConfig config;
  config.parallel.tp = 2;
  EXPECT_EQ(data_parallel_size(config, 4), 2);
  EXPECT_EQ(ranks_wanted(config), 2);
  EXPECT_EQ(layout_refusal(config, 4), "accepted");
  EXPECT_THAT(layout_refusal(config, 3), HasSubstr("[mesh] tp(2) x dp(1) = 2, but 3 ranks were started"));
  config.parallel.tp = 4;
  config.model.heads = 6;
  EXPECT_THAT(layout_refusal(config, 4), HasSubstr("model.heads(6) % tp(4) = 2"));
  EXPECT_THAT(layout_refusal(config, 4), HasSubstr("use tp 2 or 1"));
  config.model.heads = 12;
  config.model.kv_heads = 3;
  EXPECT_THAT(layout_refusal(config, 4), HasSubstr("neither of model.kv_heads(3) and tp(4) divides the other"));
  config.model.kv_heads = 2;  // two ranks share each
  EXPECT_EQ(layout_refusal(config, 4), "accepted");
}

TEST(Fields, TheListIsFrozen) {
  std::vector<std::string> keys;
  for (const Section& section : sections()) {
    for (const Field& field : section.fields) keys.push_back(field.key());
  }
  EXPECT_EQ(join(keys, " "),
            "run.name run.dir "
            "model.preset model.from model.family model.layers model.hidden model.heads model.kv_heads model.head_size model.ffn "
            "model.vocab_size model.max_seq_len model.tied model.norm model.branches model.norm_eps model.rope_theta model.dropout "
            "model.q_lora_rank model.kv_lora_rank model.qk_nope_head_dim model.qk_rope_head_dim model.v_head_dim "
            "model.experts model.experts_per_token model.expert_ffn model.shared_experts model.dense_layers model.router "
            "model.router_groups model.router_top_groups model.routed_scale "
            "model.mixers model.feed_forwards model.window model.state_heads model.state_head_size model.state_size model.state_groups "
            "model.state_convolution model.state_chunk "
            "moe.capacity_factor moe.drop moe.balance moe.scope moe.aux_coefficient moe.z_coefficient moe.bias_rate moe.imbalance_limit moe.static_buffers "
            "data.train data.validation data.tokenizer data.shuffle data.pack data.document_mask data.reset_positions "
            "train.steps train.seq_len train.global_batch train.micro_batch train.seed train.precision train.device "
            "train.eval_every train.eval_samples train.log_every train.threads train.nonfinite "
            "train.comm_timeout train.join_timeout train.check_replicas_every "
            "optimizer.kind optimizer.lr optimizer.min_lr optimizer.warmup_steps optimizer.schedule optimizer.weight_decay "
            "optimizer.beta1 optimizer.beta2 optimizer.eps optimizer.max_grad_norm optimizer.momentum optimizer.nesterov "
            "optimizer.ns_steps optimizer.ns_precision optimizer.muon_scale optimizer.muon_lr optimizer.muon_weight_decay optimizer.rules "
            "parallel.dp parallel.zero parallel.fsdp parallel.dp_replicate parallel.dp_shard parallel.prefetch "
            "parallel.prefetch_limit parallel.reshard_after_forward parallel.reshard_after_microbatch "
            "parallel.reduce_precision parallel.tp parallel.pp parallel.schedule parallel.virtual_stages "
            "parallel.layers_per_stage parallel.post_validation parallel.sequence_parallel "
            "parallel.row_groups parallel.ep parallel.etp parallel.dispatcher parallel.ranks_per_node parallel.cp parallel.context "
            "parallel.context_inner parallel.context_split parallel.data_parallel parallel.bucket_mib "
            "parallel.overlap parallel.overlap_experts parallel.backend "
            "memory.recompute memory.offload memory.device_limit memory.host_limit memory.disk_path "
            "checkpoint.every checkpoint.keep checkpoint.asynchronous checkpoint.stall_timeout "
            "checkpoint.resume trace.steps");
}

TEST(Fields, EachHasHelp) {
  for (const Section& section : sections()) {
    for (const Field& field : section.fields) EXPECT_FALSE(field.help.empty()) << field.key();
  }
}

TEST(Fields, TheReferencePageIsCurrent) {
  EXPECT_EQ(read_file(LOCKSTEP_SOURCE_DIR "/docs/config.md"), config_reference_markdown())
      << "run: lockstep config docs > docs/config.md";
}

}  // namespace
}  // namespace lockstep::config
