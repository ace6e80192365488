// The way of tokens from rank to rank: against the predicted ledger, the counts of ExpertRows and formulas; and what is drawn of it.
#include "lockstep/program/render/draw_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "lockstep/arch/expert_branch.h"
#include "lockstep/base/text.h"
#include "lockstep/program/passes/passes.h"
#include "lockstep/program/predict/traffic.h"
#include "lockstep/program/test_experts.h"

namespace lockstep::program {
namespace {

using config::Dispatcher;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

const std::vector<ExpertLayout> kLayouts = {
    {.replicate = 4, .ep = 4},
    {.replicate = 4, .ep = 2, .etp = 2},
    {.replicate = 4, .ep = 2},
    {.replicate = 2, .tp = 2, .ep = 4},
    {.replicate = 4, .ep = 4, .dispatcher = Dispatcher::kAllGather},
    {.replicate = 4, .ep = 2, .etp = 2, .dispatcher = Dispatcher::kAllGather},
    {.replicate = 4, .ep = 4, .dispatcher = Dispatcher::kHierarchical, .node = 2},
    {.replicate = 8, .ep = 4, .etp = 2, .dispatcher = Dispatcher::kHierarchical, .node = 4},
};

// By peer, of all microbatches.
std::map<int, int64_t> predicted(const Ledger& ledger, const std::string& call) {
  for (const auto& [text, key, entry] : ledger.printed())
    if (text == call) return entry.sent;
  ADD_FAILURE() << "no " << call;
  return {};
}

// What is drawn is what `show traffic` predicts, to the byte, from each rank to each.
TEST(DrawTokens, RowsAreTheBytesOfThePredictedLedger) {
  for (const ExpertLayout& of : kLayouts) {
    Layout layout = layout_of(of);
    for (const bool slots : {false, true}) {
      if (slots && of.dispatcher != Dispatcher::kAllToAll) continue;
      layout.moe.static_buffers = slots;
      SCOPED_TRACE(cat(text_of(of), slots ? " slots" : ""));
      const Program program = make_program(layout);
      const TokenRoutes routes = token_routes(layout, 0);
      const int64_t bytes = layout.model.hidden * layout.element_size() * layout.num_microbatches();
      for (size_t from = 0; from < routes.ranks.size(); ++from) {
        const Ledger ledger = predict_ledger(layout, program, routes.ranks[from]);
        for (const TokenHop& hop : routes.hops) {
          std::map<int, int64_t> sent;
          for (size_t to = 0; to < routes.ranks.size(); ++to)
            if (const int64_t rows = hop.sent(static_cast<int>(from), static_cast<int>(to)); to != from && rows > 0) sent[routes.ranks[to]] = rows * bytes;
          EXPECT_EQ(sent, predicted(ledger, cat("blocks.0.", hop.part, " forward"))) << hop.part;
        }
      }
    }
  }
}

// What all send is what all receive, and so much comes to each as ExpertRows says.
TEST(DrawTokens, WhatLeavesComes) {
  for (const ExpertLayout& of : kLayouts) {
    SCOPED_TRACE(text_of(of));
    const Layout layout = layout_of(of);
    const arch::ExpertRows rows(layout.model, layout.cost_input(0));
    const TokenRoutes routes = token_routes(layout, 0);
    const int ranks = of.ep * of.etp;
    ASSERT_EQ(std::ssize(routes.ranks), ranks);
    EXPECT_EQ(routes.own, 32 / of.tp);  // 2 sequences of 16
    EXPECT_EQ(routes.assignments, 2 * routes.own);
    EXPECT_EQ(routes.at_experts, rows.balanced);
    for (const TokenHop& hop : routes.hops) {
      for (int member = 0; member < ranks; ++member) {
        int64_t leaves = 0, comes = 0;
        for (int peer = 0; peer < ranks; ++peer) leaves += hop.sent(member, peer), comes += hop.sent(peer, member);
        EXPECT_EQ(leaves, hop.of_a_rank());
        EXPECT_EQ(comes, hop.of_a_rank());
      }
    }
    // One by one each assignment to every rank of etp; else every row to all ranks, or once to each node.
    const int64_t first = of.dispatcher == Dispatcher::kAllToAll ? rows.balanced
                          : of.dispatcher == Dispatcher::kAllGather ? ranks * routes.own : ranks / of.node * routes.own;
    EXPECT_EQ(routes.hops.front().of_a_rank(), first);
    EXPECT_EQ(routes.hops.back().of_a_rank(), first);
    EXPECT_EQ(std::ssize(routes.hops), of.dispatcher == Dispatcher::kHierarchical ? 4 : 2);
  }
}

TEST(DrawTokens, OfSlotsAreAllSlots) {
  Layout layout = layout_of({.replicate = 4, .ep = 2, .etp = 2});
  layout.moe.static_buffers = true;
  const TokenRoutes routes = token_routes(layout, 0);
  EXPECT_EQ(routes.slots, 32);
  EXPECT_EQ(routes.assignments, 64);
  EXPECT_EQ(routes.hops[0].of_a_rank(), 8 * 32 * 2);  // of all experts, on both ranks of each
  EXPECT_EQ(routes.at_experts, 4 * 4 * 32);           // of 4 ranks, for 4 experts
  EXPECT_FALSE(routes.hops[0].decided_by_tokens);
  EXPECT_THAT(draw_tokens(layout, 0), HasSubstr("whatever the tokens choose"));
}

// The numbers of a line: what begins behind `label`.
std::vector<std::vector<int64_t>> lines_of(const std::string& text, const std::string& label) {
  std::vector<std::vector<int64_t>> found;
  for (const std::string& line : split(text, '\n')) {
    if (!line.starts_with(label + " ")) continue;
    std::istringstream rest(line.substr(label.size()));
    found.emplace_back();
    for (int64_t number = 0; rest >> number;) found.back().push_back(number);
  }
  return found;
}

TEST(DrawTokens, DrawsAColumnForEachRank) {
  const Layout layout = layout_of({.replicate = 4, .ep = 4});
  const std::string text = draw_tokens(layout, 0);
  EXPECT_THAT(lines_of(text, "own rows"), ElementsAre(ElementsAre(32, 32, 32, 32)));
  EXPECT_THAT(text, HasSubstr("|==> all_to_all (dispatch) over ep\n"));
  EXPECT_THAT(text, HasSubstr("|==> all_to_all (combine) over ep\n"));
  EXPECT_LT(text.find("(dispatch)"), text.find("\nexperts "));
  EXPECT_LT(text.find("\nexperts "), text.find("(combine)"));
  for (int to = 0; to < 4; ++to) {
    const auto sent = lines_of(text, cat("  to rank ", to));
    EXPECT_THAT(sent, ElementsAre(ElementsAre(16, 16, 16, 16), ElementsAre(16, 16, 16, 16)));
  }
  EXPECT_THAT(lines_of(text, "come"), ElementsAre(ElementsAre(64, 64, 64, 64), ElementsAre()));  // the second: "come back"
  EXPECT_THAT(lines_of(text, "rows of each"), ElementsAre(ElementsAre(32, 32, 32, 32)));
  for (const char* experts : {"0..1", "2..3", "4..5", "6..7"}) EXPECT_THAT(text, HasSubstr(experts));
  EXPECT_THAT(lines_of(text, "weighted sums, own rows"), ElementsAre(ElementsAre(32, 32, 32, 32)));
  for (const std::string& line : split(text, '\n')) EXPECT_LT(line.size(), 140U) << line;
}

// Over nodes first to the rank of the same place, then to those of the node.
TEST(DrawTokens, DrawsBothStepsOverNodes) {
  const std::string text = draw_tokens(layout_of({.replicate = 4, .ep = 4, .dispatcher = Dispatcher::kHierarchical, .node = 2}), 0);
  std::vector<std::string> to_last;
  for (const std::string& line : split(text, '\n'))
    if (line.starts_with("  to rank 3")) to_last.push_back(line.substr(line.find_first_of(".0123456789", 11)));
  for (std::string& line : to_last) line.erase(std::unique(line.begin(), line.end(), [](char a, char b) { return a == ' ' && b == ' '; }), line.end());
  EXPECT_THAT(to_last, ElementsAre(". 32 . 32", ". . 32 32", ". . 32 32", ". 32 . 32"));
}

TEST(DrawTokens, DrawsTheFirstOfManyRanks) {
  const Layout layout = layout_of({.replicate = 16, .ep = 8, .etp = 2});
  const std::string text = draw_tokens(layout, 0);
  EXPECT_THAT(text, HasSubstr("the first 8 of 16 ranks that share the experts"));
  EXPECT_THAT(text, Not(HasSubstr("rank 8")));
  const TokenHop hop = token_routes(layout, 0).hops.front();
  const std::vector<std::vector<int64_t>> others = lines_of(text, "  to the others");
  ASSERT_EQ(others.size(), 2U);
  EXPECT_EQ(others[0], std::vector<int64_t>(8, hop.rows * 8));
  EXPECT_THAT(text, HasSubstr("1 of 2"));
}

TEST(DrawTokens, DrawsNothingOfOneRank) {
  EXPECT_EQ(draw_tokens(layout_of({.replicate = 4}), 0), "");
  Layout dense = layout_of({.replicate = 2});
  dense.model = arch::resolve_model({.preset = "llama-test"});
  EXPECT_EQ(draw_tokens(dense, 0), "");
  EXPECT_TRUE(token_routes(dense, 0).hops.empty());
}

// In another stage, and in another group of the stage, they are other ranks.
TEST(DrawTokens, OfTheGroupOfARank) {
  const Layout layout = layout_of({.replicate = 4, .pp = 2, .ep = 2});
  EXPECT_THAT(token_routes(layout, 0).ranks, ElementsAre(0, 1));
  EXPECT_THAT(token_routes(layout, 3).ranks, ElementsAre(2, 3));
  EXPECT_THAT(token_routes(layout, 7).ranks, ElementsAre(6, 7));
  EXPECT_THAT(draw_tokens(layout, 7), HasSubstr("to rank 6"));
}

}  // namespace
}  // namespace lockstep::program
