// The keys of context parallelism and of documents: read, printed, read again, and what is refused of them together.
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
using ::testing::HasSubstr;

constexpr const char* kEveryKey = R"(
[data]
pack = "documents"
document_mask = false
reset_positions = false
[parallel]
cp = 4
context = "2d"
context_inner = 2
context_split = "contiguous"
)";

TEST(ContextConfig, ReadsTheKeys) {
  const RunConfig config = read(kEveryKey);
  EXPECT_EQ(config.data.pack, Pack::kDocuments);
  EXPECT_EQ(config.data.document_mask, false);
  EXPECT_EQ(config.data.reset_positions, false);
  EXPECT_EQ(config.parallel.cp, 4);
  EXPECT_EQ(config.parallel.context, ContextKind::k2d);
  EXPECT_EQ(config.parallel.context_inner, 2);
  EXPECT_EQ(config.parallel.context_split, ContextSplit::kContiguous);
}

TEST(ContextConfig, ResolvedTextReadsBack) {
  const LoadedConfig loaded = load_config_text(kEveryKey, "run.toml");
  EXPECT_EQ(load_config_text(resolved_toml(loaded), "resolved").config, loaded.config);
  EXPECT_THAT(resolved_toml(load_config({}, {})), HasSubstr("# document_mask is not set\n"));
  EXPECT_THAT(fields_help(), HasSubstr("--parallel.context=ring | all_to_all | all_gather | 2d"));
}

TEST(ContextConfig, DocumentsFollowFromThePacking) {
  const auto both = [](const std::string& text) {
    const DataSection data = read("[data]\n" + text).data;
    return std::pair(data.masks_documents(), data.resets_positions());
  };
  EXPECT_EQ(both(""), std::pair(false, false));
  EXPECT_EQ(both("pack = \"documents\""), std::pair(true, true));
  EXPECT_EQ(both("document_mask = true"), std::pair(true, true));
  EXPECT_EQ(both("pack = \"documents\"\nreset_positions = false"), std::pair(true, false));
  EXPECT_EQ(both("pack = \"documents\"\ndocument_mask = false"), std::pair(false, false));
}

TEST(ContextConfig, RefusesValues) {
  EXPECT_THAT(refusal("[parallel]\ncp = 0\n"), HasSubstr("LS1044"));
  EXPECT_THAT(refusal("[parallel]\ncontext = \"ulysses\"\n"), HasSubstr("is none of ring, all_to_all, all_gather, 2d"));
  EXPECT_THAT(refusal("[data]\npack = \"best_fit\"\n"), HasSubstr("is none of stream, documents"));
  EXPECT_THAT(refusal("[data]\ndocument_mask = 1\n"), HasSubstr("LS1043"));
}

TEST(ContextConfig, RanksMakeUpTheProduct) {
  EXPECT_EQ(ranks_wanted(read("[parallel]\ncp = 4")), 4);
  EXPECT_EQ(ranks_wanted(read("[parallel]\ncp = 2\ntp = 2\npp = 3\ndp = 2")), 24);
  EXPECT_EQ(ranks_wanted(read("[parallel]\ncp = 4\nep = 2")), 4) << "experts lie over the ranks of cp too";
  EXPECT_EQ(ranks_wanted(read("[parallel]\ncp = 2\nep = 8")), 8);
  EXPECT_EQ(data_parallel_size(read("[parallel]\ncp = 2\ntp = 2"), 8), 2);
  EXPECT_EQ(data_parallel_size(read("[parallel]\ncp = 65536\ntp = 65536"), 8), 1);
  EXPECT_EQ(ranks_of_copy(read("[parallel]\ncp = 2\ntp = 3\npp = 4").parallel), 24);
  EXPECT_EQ(batch_unit(read("[train]\nmicro_batch = 3\n[parallel]\ncp = 2"), 8), 12) << "ranks of cp have the same sequences";
}

TEST(ContextConfig, WhatFits) {
  const auto fits = [](const std::string& text, int ranks) { return layout_refusal(text, ranks); };
  for (const char* text : {"[parallel]\ncp = 4", "[parallel]\ncp = 2\ntp = 2", "[parallel]\ncp = 2\npp = 2", "[parallel]\ncp = 2\nzero = 3",
                           "[parallel]\ncp = 4\ncontext = \"2d\"\ncontext_inner = 2", "[parallel]\ncp = 2\ndata_parallel = \"parameter_server\"",
                           "[model]\nheads = 6\n[parallel]\ncp = 4\ncontext = \"all_to_all\"",
                           "[parallel]\ncp = 4\nzero = 2\nreduce_precision = \"bf16\"", "[train]\nseq_len = 9\n[parallel]\ncp = 4",
                           "[model]\nexperts = 8\n[parallel]\ncp = 4\nep = 4", "[parallel]\ncontext = \"2d\"\ncontext_split = \"contiguous\""})
    EXPECT_EQ(fits(text, 4), "accepted") << text;
}

TEST(ContextConfig, RefusesRanksThatDoNotFit) {
  expect_refused({"[parallel]\ncp = 3", 4, "run.toml:2", "[mesh] cp(3) x dp(1) = 3, but 4 ranks were started", "-n 3"});
  expect_refused({"[parallel]\ncp = 4\ndp = 2", 4, "run.toml:3", "[mesh] cp(4) x dp(2) = 8, but 4 ranks were started", "cp 2"});
  expect_refused({"[parallel]\ncp = 4\ntp = 2\ndp = 1", 4, "run.toml:4", "[mesh] tp(2) x cp(4) x dp(1) = 8, but 4 ranks were started", "-n 8"});
  expect_refused({"[parallel]\ncp = 1048576\ntp = 2", 4, "run.toml:3", "[mesh] tp(2) x cp(1048576) x pp(1) x dp(1) = 2097152 ranks", "cp 2"});
  expect_refused({"[model]\nexperts = 8\n[parallel]\ncp = 2\nep = 8", 4, "run.toml:5", "[mesh] dp(2) x cp(2) x tp(1) = 4 ranks of a stage % ep(8) = 4",
                  "ep 4"});
}

TEST(ContextConfig, RefusesGroupsInsideCp) {
  expect_refused_alone({"[parallel]\ncp = 4\ncontext_inner = 2", 4, "run.toml:3", "context_inner(2) beside context = \"ring\"", "context 2d"});
  expect_refused_alone({"[parallel]\ncp = 4\ncontext = \"2d\"", 4, "parallel.context_inner",
                        "context = \"2d\" needs several groups of several ranks, but cp(4) and context_inner(1)", "context_inner 2"});
  expect_refused_alone({"[parallel]\ncp = 6\ncontext = \"2d\"\ncontext_inner = 4", 6, "run.toml:4", "cp % context_inner = 2", "context_inner 3 or 2"});
  expect_refused_alone({"[parallel]\ncp = 3\ncontext = \"2d\"\ncontext_inner = 3", 3, "run.toml:4", "cp(3) and context_inner(3)",
                        "use context ring without context_inner"});
}

TEST(ContextConfig, RefusesFewerHeadsThanRanks) {
  expect_refused_alone({"[model]\nheads = 2\n[parallel]\ncp = 4\ncontext = \"all_to_all\"", 4, "run.toml:4",
                        "cp(4) ranks exchange heads for tokens, but there are model.heads(2)", "context ring"});
  expect_refused_alone({"[model]\nheads = 4\n[parallel]\ncp = 4\ntp = 2\ncontext = \"all_to_all\"", 8, "run.toml:4",
                        "model.heads(4) / tp(2) = 2", "use context ring"});
  expect_refused_alone({"[model]\nheads = 2\n[parallel]\ncp = 8\ncontext = \"2d\"\ncontext_inner = 4", 8, "run.toml:6",
                        "context_inner(4) ranks exchange heads", "context_inner 2"});
}

TEST(ContextConfig, RefusesSequencesThatAreTooShort) {
  expect_refused_alone({"[train]\nseq_len = 7\n[parallel]\ncp = 4", 4, "run.toml:2", "seq_len(7) < 2 cp(4) = 8", "seq_len 8"});
  expect_refused_alone({"[train]\nseq_len = 3\n[parallel]\ncp = 4\ncontext_split = \"contiguous\"", 4, "run.toml:2", "seq_len(3) < cp(4) = 4",
                        "seq_len 4"});
  EXPECT_EQ(layout_refusal("[train]\nseq_len = 5\n[parallel]\ncp = 4\ncontext_split = \"contiguous\"", 4), "accepted");
  expect_refused_alone({"[model]\nexperts = 8\n[train]\nseq_len = 100\n[parallel]\ncp = 4", 4, "run.toml:4", "seq_len(100) % 2 cp(4) = 4",
                        "seq_len 96 or 104"});
}

TEST(ContextConfig, RefusesPositionsOfDocumentsThatSeeEachOther) {
  expect_refused_alone({"[data]\nreset_positions = true\ndocument_mask = false", 1, "run.toml:2",
                        "reset_positions = true, but document_mask = false", "document_mask true"});
}

}  // namespace
}  // namespace lockstep::config
