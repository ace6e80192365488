// The keys of experts: read, printed, read again, and what is refused of them together.
#include "lockstep/base/text.h"
#include "lockstep/config/fields.h"
#include "lockstep/config/suggestion.h"
#include "lockstep/config/test_refusals.h"

namespace lockstep::config {
namespace {

using config::testing::expect_refused;
using config::testing::expect_refused_alone;
using config::testing::layout_refusal;
using config::testing::read;
using config::testing::refusal;
using config::testing::Refused;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kEveryKey = R"(
[model]
experts = 16
experts_per_token = 4
expert_ffn = 96
shared_experts = 1
dense_layers = [3, 0]
router = "sigmoid"
router_groups = 4
router_top_groups = 2
routed_scale = 2.5
[moe]
capacity_factor = 1.25
drop = "position"
balance = "bias"
scope = "last_step"
aux_coefficient = 0.02
z_coefficient = 0.001
bias_rate = 0.01
[parallel]
ep = 4
etp = 2
)";

TEST(ExpertConfig, ReadsTheKeys) {
  const RunConfig config = read(kEveryKey);
  EXPECT_EQ(config.model.experts, 16);
  EXPECT_EQ(config.model.experts_per_token, 4);
  EXPECT_EQ(config.model.expert_ffn, 96);
  EXPECT_EQ(config.model.shared_experts, 1);
  EXPECT_EQ(config.model.dense_layers.value().first, std::nullopt);
  EXPECT_THAT(config.model.dense_layers.value().list, ElementsAre(0, 3));
  EXPECT_EQ(config.model.router, Router::kSigmoid);
  EXPECT_EQ(config.model.router_groups, 4);
  EXPECT_EQ(config.model.router_top_groups, 2);
  EXPECT_EQ(config.model.routed_scale, 2.5);
  const MoeSection moe{.capacity_factor = 1.25, .drop = Drop::kPosition, .balance = Balance::kBias, .scope = MoeScope::kLastStep,
                       .aux_coefficient = 0.02, .z_coefficient = 0.001, .bias_rate = 0.01};
  EXPECT_EQ(config.moe, moe);
  EXPECT_EQ(config.parallel.ep, 4);
  EXPECT_EQ(config.parallel.etp, 2);
  EXPECT_EQ(read("[model]\nlayers = 3").moe, MoeSection{});
}

TEST(ExpertConfig, ResolvedTextReadsBack) {
  const LoadedConfig loaded = load_config_text(kEveryKey, "run.toml");
  EXPECT_EQ(load_config_text(resolved_toml(loaded), "resolved").config, loaded.config);
  EXPECT_THAT(resolved_toml(loaded), HasSubstr("dense_layers = [0, 3] "));
  EXPECT_THAT(resolved_toml(load_config({}, {})), HasSubstr("# capacity_factor is not set\n"));
  EXPECT_THAT(fields_help(), HasSubstr("--moe.balance=none | aux | bias"));
}

TEST(ExpertConfig, DenseLayersAreANumberOrAList) {
  const auto layers = [](const std::string& text) { return load_config({}, {{"model.dense_layers", text}}).config.model.dense_layers.value(); };
  EXPECT_EQ(layers("2"), DenseLayers{.first = 2});
  EXPECT_EQ(layers("[0, 3]"), (DenseLayers{.first = std::nullopt, .list = {0, 3}}));
  EXPECT_EQ(layers("[]"), DenseLayers{});
  EXPECT_THAT(refusal("[model]\ndense_layers = \"two\"\n"), HasSubstr("LS1046: model.dense_layers = \"two\" is no number of blocks"));
  EXPECT_THAT(refusal("[model]\ndense_layers = -1\n"), HasSubstr("-1 is not within 0 to 65536"));
  EXPECT_THAT(refusal("[model]\ndense_layers = [1, 1]\n"), HasSubstr("names a block twice"));
  EXPECT_THAT(refusal("[model]\ndense_layers = [\"a\"]\n"), HasSubstr("LS1046"));
}

TEST(ExpertConfig, RefusesValues) {
  EXPECT_THAT(refusal("[model]\nexperts = 0\n"), HasSubstr("LS1044"));
  EXPECT_THAT(refusal("[model]\nrouter = \"softmax_topk\"\n"), HasSubstr("LS1045"));
  EXPECT_THAT(refusal("[moe]\ncapacity_factor = 0\n"), HasSubstr("LS1044"));
  EXPECT_THAT(refusal("[moe]\nbalance = \"loss\"\n"), HasSubstr("is none of none, aux, bias"));
  EXPECT_THAT(refusal("[moe]\nscope = \"batch\"\n"), HasSubstr("is none of sequence, last_step"));
  EXPECT_THAT(refusal("[parallel]\nep = 0\n"), HasSubstr("LS1044"));
}

// It is that of routers' biases.
TEST(ExpertConfig, NobodyChoosesTheOptimizerOfABias) {
  EXPECT_EQ(name_of(OptimizerKind::kBalance), "balance");
  EXPECT_THAT(refusal("[optimizer]\nkind = \"balance\"\n"), HasSubstr("\"balance\" is none of adamw, muon"));
  EXPECT_THAT(refusal("[[optimizer.rules]]\nclass = \"bias\"\noptimizer = \"balance\"\n"), HasSubstr("\"balance\" is none of adamw, muon"));
  EXPECT_THAT(refusal("[[optimizer.rules]]\nclass = \"router\"\nlr = 0.5\n"), ::testing::StrEq("accepted"));
}

TEST(ExpertConfig, TheGridThatFits) {
  const auto fits = [](const std::string& parallel, int ranks) {
    return layout_refusal("[model]\nexperts = 8\nexpert_ffn = 96\nheads = 12\n[parallel]\n" + parallel, ranks);
  };
  for (const char* parallel : {"ep = 4", "ep = 2\netp = 2", "tp = 4\nep = 4", "tp = 2\netp = 4", "pp = 2\nep = 2", "zero = 3\nep = 2"})
    EXPECT_EQ(fits(parallel, 4), "accepted") << parallel;
  EXPECT_THAT(fits("pp = 2\nep = 4", 4), HasSubstr("[mesh] dp(2) x tp(1) = 2 ranks of a stage % ep(4) = 2"));
}

TEST(ExpertConfig, TheRanksThatItAsksFor) {
  const auto wanted = [](const std::string& parallel) { return ranks_wanted(read("[parallel]\n" + parallel)); };
  EXPECT_EQ(wanted("ep = 4"), 4);
  EXPECT_EQ(wanted("ep = 4\ntp = 2"), 4);
  EXPECT_EQ(wanted("ep = 2\netp = 3\ntp = 2\npp = 2"), 12);
  EXPECT_EQ(wanted("ep = 4\ndp = 2"), 2) << "as it says";
}

TEST(ExpertConfig, TheRanksThatShareStatesOfAnExpert) {
  const auto shards = [](const std::string& parallel, int ranks) { return expert_shards(read("[parallel]\n" + parallel), ranks); };
  EXPECT_EQ(shards("ep = 2", 8), 1);
  EXPECT_EQ(shards("zero = 1\nep = 2", 8), 4);
  EXPECT_EQ(shards("zero = 3\nep = 8", 8), 1);
  EXPECT_EQ(shards("zero = 3\ndp_replicate = 2\nep = 2", 8), 2);
  EXPECT_EQ(shards("zero = 3\ndp_replicate = 4\nep = 4", 8), 1);
}

// The load of the step before: of what would go by it, and where it is known.
TEST(ExpertConfig, ScopeThatNothingGoesBy) {
  const std::string model = "[model]\nexperts = 8\nexpert_ffn = 96\n";
  const std::string alone[] = {model + "[moe]\nbalance = \"none\"\nscope = \"last_step\"",
                               model + "router = \"expert_choice\"\n[moe]\nbalance = \"none\"\nscope = \"last_step\"",
                               model + "[moe]\nscope = \"last_step\"\n[parallel]\npp = 2\npost_validation = \"on\""};
  expect_refused_alone({alone[0].c_str(), 2, "run.toml:6", "balance = \"none\", and capacity_factor is not set", "leave scope out"});
  expect_refused_alone({alone[1].c_str(), 2, "run.toml:7", "experts choose among the tokens of this step", "use scope sequence"});
  expect_refused_alone({alone[2].c_str(), 2, "run.toml:8", "post_validation = \"on\" beside moe.scope: scope = \"last_step\" wants the counts",
                        "use post_validation auto or off"});
  EXPECT_EQ(layout_refusal(model + "[moe]\nbalance = \"none\"\ncapacity_factor = 1\nscope = \"last_step\"", 2), "accepted");
  EXPECT_FALSE(pipeline_choice(read("[moe]\nscope = \"last_step\"\n[parallel]\npp = 2\nschedule = \"zb-h2\"")).post_validation);
}

TEST(ExpertConfig, EveryProblemIsNamed) {
  const std::string model = "[model]\nexperts = 8\nexpert_ffn = 96\n";
  const std::string alone[] = {
      model + "[parallel]\nep = 3", model + "[parallel]\nep = 8", model + "[parallel]\netp = 4\nep = 2",
      model + "[parallel]\nep = 2\ndata_parallel = \"parameter_server\"",
      model + "router = \"expert_choice\"", model + "[moe]\ndrop = \"position\"",
      model + "[moe]\nbalance = \"none\"\naux_coefficient = 0.1", model + "[moe]\nbias_rate = 0.1",
      model + "[moe]\nimbalance_limit = 2", model + "[moe]\nstatic_buffers = true", model + "[parallel]\ndispatcher = \"all_gather\"",
      model + "[moe]\nstatic_buffers = true\n[parallel]\nep = 2\ndispatcher = \"all_gather\"",
      model + "[parallel]\nep = 4\ndispatcher = \"hierarchical\"", model + "[parallel]\nep = 4\ndispatcher = \"hierarchical\"\nranks_per_node = 4",
      model + "[parallel]\nep = 4\nranks_per_node = 2"};
  const Refused all[] = {
      {alone[0].c_str(), 3, "run.toml:5", "model.experts(8) % ep(3) = 2", "ep "},
      {alone[1].c_str(), 4, "run.toml:5", "[mesh] dp(4) x tp(1) = 4 ranks of a stage % ep(8) = 4", "use ep 4"},
      {alone[2].c_str(), 4, "run.toml:6", "[mesh] dp(4) x tp(1) = 4 ranks of a stage % etp(4) x ep(2) = 4", "ep 1"},
      {alone[3].c_str(), 4, "run.toml:6", "a parameter server updates all parameters, but with ep(2) x etp(1) no rank has all experts",
       "use data_parallel ring"},
      {alone[4].c_str(), 2, "moe.balance", "balance = \"aux\", but with router expert_choice every expert has the same load",
       "use balance none"},
      {alone[5].c_str(), 2, "run.toml:5", "capacity_factor, which is not set", "leave drop out"},
      {alone[6].c_str(), 2, "run.toml:6", "aux_coefficient(0.1) beside balance = \"none\"", "leave aux_coefficient out"},
      {alone[7].c_str(), 2, "run.toml:5", "bias_rate(0.1) beside balance = \"aux\"", "leave bias_rate out"},
      {alone[8].c_str(), 2, "run.toml:5", "imbalance_limit(2) bounds what comes from other ranks, but with ep(1) x etp(1)", "leave imbalance_limit out"},
      {alone[9].c_str(), 2, "run.toml:5", "static_buffers are of messages between ranks", "leave static_buffers out"},
      {alone[10].c_str(), 2, "run.toml:5", "dispatcher = \"all_gather\", but with ep(1) x etp(1) every rank has all experts", "leave dispatcher out"},
      {alone[11].c_str(), 2, "run.toml:5", "whose ranks tell each other which tokens go where", "leave static_buffers out"},
      {alone[12].c_str(), 4, "parallel.ranks_per_node", "ep(4) x etp(1) = 4 and ranks_per_node is not set", "ranks_per_node 2"},
      {alone[13].c_str(), 4, "run.toml:7", "ep(4) x etp(1) = 4 and ranks_per_node(4)", "ranks_per_node 2"},
      {alone[14].c_str(), 4, "run.toml:6", "ranks_per_node(2) beside dispatcher = \"all_to_all\"", "leave ranks_per_node out"},
  };
  for (const Refused& refused : all) expect_refused_alone(refused);
  const std::string bias = model + "router = \"expert_choice\"\n[moe]\nbalance = \"bias\"";
  expect_refused({bias.c_str(), 2, "run.toml:6", "balance = \"bias\", but with router expert_choice", "use balance none"});
  const std::string width = "[model]\nexperts = 8\nexpert_ffn = 90\n[parallel]\netp = 4";
  expect_refused_alone({width.c_str(), 4, "run.toml:5", "model.expert_ffn(90) % etp(4) = 2", "etp 2"});
}

// Ranks of tp may hold the same experts, and then share out their states and sum their gradients.
TEST(ExpertConfig, RanksOfTpThatHoldTheSameExperts) {
  const std::string model = "[model]\nexperts = 8\nexpert_ffn = 96\nheads = 4\n";
  const std::string server = model + "[parallel]\ntp = 2\ndata_parallel = \"parameter_server\"",
                    offload = model + "[parallel]\ntp = 2\nzero = 1\n[memory]\noffload = [\"optimizer\", \"parameters\"]";
  expect_refused_alone({server.c_str(), 4, "run.toml:7", "with tp(2) gradients of experts are parts of a sum over tp too",
                        "use data_parallel ring"});
  expect_refused_alone({offload.c_str(), 2, "run.toml:9", "with zero 1 each of 2 ranks updates a part of its experts", "use zero 3"});
  for (const char* fits : {"tp = 2\netp = 2\nzero = 1", "tp = 2\nep = 2\nzero = 2", "tp = 2\nzero = 3", "tp = 2"})
    EXPECT_EQ(layout_refusal(model + "[parallel]\n" + fits + "\n[memory]\noffload = [\"optimizer\", \"parameters\"]", 2), "accepted") << fits;
}

// With 48 sequences of one each: which lists have two microbatches that may take turns.
TEST(ExpertConfig, OverlapWantsTwoMicrobatchesThatNeedNotWait) {
  const std::string head = "[model]\nexperts = 8\nexpert_ffn = 96\n[parallel]\noverlap_experts = true\n";
  for (const char* parallel : {"ep = 2", "etp = 2", "ep = 2\nzero = 2", "pp = 2\nep = 2\nschedule = \"interleaved\"",
                               "pp = 2\nep = 2\nschedule = \"zb-v\"", "pp = 2\nep = 2\nschedule = \"dualpipe-v\""})
    EXPECT_EQ(layout_refusal(head + parallel, 4), "accepted") << parallel;
  const std::string alone[] = {head, head + "ep = 2\npp = 2", head + "ep = 2\noverlap = false", head + "ep = 2\nzero = 3",
                               head + "ep = 2\npp = 2\nschedule = \"gpipe\""};
  const Refused all[] = {
      {alone[0].c_str(), 2, "run.toml:5", "no token leaves its rank for an expert", "leave overlap_experts out"},
      {alone[1].c_str(), 4, "run.toml:5", "overlap_experts beside schedule 1f1b of pp(2) ranks and 24 microbatches", "interleaved"},
      {alone[2].c_str(), 2, "run.toml:5", "overlap_experts beside overlap = false", "overlap true"},
      {alone[3].c_str(), 4, "run.toml:5", "parameters that are gathered or fetched for each use", "leave overlap_experts out"},
      {alone[4].c_str(), 4, "run.toml:5", "overlap_experts beside schedule gpipe", "interleaved"},
  };
  for (const Refused& refused : all) expect_refused_alone(refused);
  const std::string single = head + "ep = 2";
  expect_refused_alone({single.c_str(), 48, "run.toml:5", "1f1b of pp(1) ranks and 1 microbatch:", "leave overlap_experts out"});
  EXPECT_EQ(pairs_of(ScheduleKind::kZbV, 4, 3), Pairs::kNone) << "what comes back waits for what still goes down";
}

// The keys of ranks and of training where a model has no experts; where only the preset knows, nobody says so here.
TEST(ExpertConfig, WhatNobodyWouldReadIsRefused) {
  RunConfig config = read("[parallel]\nep = 2\netp = 2\n[moe]\nbalance = \"none\"\ncapacity_factor = 2");
  const auto said = [&] {
    std::vector<std::string> texts;
    for (const LayoutProblem& problem : layout_problems(config, 4)) texts.push_back(problem.what);
    return join(texts, "\n");
  };
  EXPECT_EQ(said(), "");
  config.model.experts = 0;
  EXPECT_EQ(said(), "ep(2) ranks share out experts, but the model has none\netp(2) ranks share each expert, but the model has none\n"
                    "moe.capacity_factor = 2 is of experts, but the model has none\nmoe.balance = \"none\" is of experts, but the model has none");
}

TEST(ExpertConfig, HowTokensTravel) {
  const RunConfig config = read("[moe]\nimbalance_limit = 1.5\n[parallel]\nep = 4\ndispatcher = \"hierarchical\"\nranks_per_node = 2");
  EXPECT_EQ(config.parallel.dispatcher, Dispatcher::kHierarchical);
  EXPECT_EQ(config.parallel.ranks_per_node, 2);
  EXPECT_EQ(config.moe.imbalance_limit, 1.5);
  EXPECT_THAT(refusal("[moe]\nimbalance_limit = 0.5\n"), HasSubstr("LS1044"));
  expect_refused_alone({"[model]\nexperts = 8\nexpert_ffn = 96\n[parallel]\ndispatcher = \"hierarchical\"\nranks_per_node = 2", 4, "run.toml:5", "every rank has all experts",
                        "leave dispatcher and ranks_per_node out"});
  EXPECT_THAT(refusal("[parallel]\ndispatcher = \"ring\"\n"), HasSubstr("is none of all_to_all, all_gather, hierarchical"));
  const std::string both = "[model]\nexperts = 8\nexpert_ffn = 96\n[moe]\nstatic_buffers = true\nimbalance_limit = 2\n[parallel]\nep = 2";
  EXPECT_THAT(layout_refusal(both, 2), HasSubstr("only counts, of which no rank asks another then, say that imbalance_limit is passed"));
}

}  // namespace
}  // namespace lockstep::config
