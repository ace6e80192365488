// What the page of cp says: against sums over the sequence, the sizes that each mode's calls have by their formulas, and text by hand.
#include "lockstep/program/render/draw_context.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/text.h"
#include "lockstep/data/token_split.h"

namespace lockstep::program {
namespace {

using config::ContextKind;
using config::ContextSplit;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

struct Case {
  int cp = 2, tp = 1;
  int64_t seq_len = 16, micro_batch = 1;
  const char* preset = "llama-test";  // 12 heads, 4 of keys and values, 4 wide
  config::Precision precision = config::Precision::kFp32;
};

Layout layout_of(const Case& of) {
  mesh::PerAxis degrees = mesh::PerAxis::ones();
  degrees[mesh::Axis::kCp] = of.cp;
  degrees[mesh::Axis::kTp] = of.tp;
  Layout layout;
  layout.model = arch::resolve_model({.preset = of.preset});
  layout.mesh = mesh::Mesh(degrees);
  layout.micro_batch = layout.global_batch = of.micro_batch;
  layout.seq_len = of.seq_len;
  layout.precision = of.precision;
  return layout;
}

TEST(RingWork, IsEveryPairOnce) {
  const std::vector<std::vector<int32_t>> all_documents = {{0}, {0, 5, 11}, {0, 1, 2, 15}};
  for (const int cp : {2, 3, 4, 5}) {
    for (const int64_t length : {16, 17, 31}) {
      const Layout layout = layout_of({.cp = cp, .seq_len = length});
      for (const std::vector<int32_t>& documents : all_documents) {
        int64_t pairs = 0;
        for (size_t i = 0; i < documents.size(); ++i) {
          const int64_t tokens = (i + 1 < documents.size() ? documents[i + 1] : length) - documents[i];
          pairs += tokens * (tokens + 1) / 2;
        }
        for (const ContextSplit split : {ContextSplit::kZigzag, ContextSplit::kContiguous}) {
          const RingWork work = ring_work(layout, split, documents);
          EXPECT_EQ(work.all(), pairs) << cp << " ranks, " << length << " tokens";
          const auto expected = data::attention_pairs(length, tokens_of_ranks(layout, split, documents), documents);
          for (int member = 0; member < cp; ++member) EXPECT_EQ(work.of_member(member), expected.at(static_cast<size_t>(member)));
        }
      }
    }
  }
}

TEST(RingWork, SeesNoFurtherThanTheWindow) {
  Layout layout = layout_of({.cp = 4, .seq_len = 16});
  layout.model.sliding_window = 3;
  const RingWork work = ring_work(layout, ContextSplit::kContiguous, {0});
  EXPECT_EQ(work.all(), 1 + 2 + 14 * 3);
  EXPECT_THAT(work.pairs[3], ElementsAre(1 + 2 + 3 + 3, 2 + 1, 0, 0));  // places 12..15
}

// c tokens in a piece: of its own block 2 c^2 + c pairs, of each other one 2 c^2. One piece of T: what comes before it whole.
TEST(RingWork, OfEachSplit) {
  for (const int cp : {2, 3, 4}) {
    const int64_t c = 5, part = 2 * c;
    const Layout layout = layout_of({.cp = cp, .seq_len = part * cp});
    const RingWork zigzag = ring_work(layout, ContextSplit::kZigzag, {0}), contiguous = ring_work(layout, ContextSplit::kContiguous, {0});
    for (int member = 0; member < cp; ++member) {
      for (int step = 0; step < cp; ++step) {
        const auto of = [&](const RingWork& work) { return work.pairs.at(static_cast<size_t>(member)).at(static_cast<size_t>(step)); };
        EXPECT_EQ(of(zigzag), 2 * c * c + (step == 0 ? c : 0));
        EXPECT_EQ(of(contiguous), step == 0 ? part * (part + 1) / 2 : step <= member ? part * part : 0);
      }
    }
    EXPECT_DOUBLE_EQ(zigzag.imbalance(), 1);
    const auto all = static_cast<double>(part * cp * (part * cp + 1)) / 2;
    EXPECT_DOUBLE_EQ(contiguous.imbalance(), static_cast<double>(part * (part + 1) / 2 + (cp - 1) * part * part) * cp / all);
  }
}

// Neighbours that exchange heads for tokens have together what a rank of the outer ring alone would.
TEST(RingWork, Of2dIsThatOfTheOuterRing) {
  Layout both = layout_of({.cp = 4, .seq_len = 32});
  both.context = ContextKind::k2d;
  both.context_inner = 2;
  const Layout outer = layout_of({.cp = 2, .seq_len = 32});
  for (const ContextSplit split : {ContextSplit::kZigzag, ContextSplit::kContiguous})
    EXPECT_EQ(ring_work(both, split, {0}).pairs, ring_work(outer, split, {0}).pairs);
}

// Bytes of a token by the sizes of the calls: n ranks, of this rank's h query and g key/value heads, k + v wide, e bytes an element.
struct Formula {
  double n, h, g, k, v, e;
  double ring_forward() const { return (n - 1) * g * (k + v) * e; }
  double ring_backward() const { return (n - 1) * g * (k + v) * e + n * g * (k + v) * 4; }
  double gather_forward() const { return (n - 1) * g * (k + v) * e; }
  double gather_backward() const { return (n - 1) * g * (k + v) * (e + 4); }
  // Heads over the ranks, filled up; the key/value heads that the query heads of any rank need.
  double query_heads() const { return std::ceil(h / n); }
  double heads_needed() const {
    double most = 0;
    for (double first = 0; first < h; first += query_heads()) {
      const double last = std::min(first + query_heads(), h) - 1;
      most = std::max(most, std::floor(last * g / h) - std::floor(first * g / h) + 1);
    }
    return most;
  }
  double heads_each_way() const { return (n - 1) * (query_heads() * (k + v) + heads_needed() * (k + v)) * e; }
};

TEST(ContextBytes, AreThoseOfTheFormulas) {
  for (const Case& of : {Case{.cp = 2}, Case{.cp = 4}, Case{.cp = 3, .seq_len = 36}, Case{.cp = 4, .tp = 2}, Case{.cp = 2, .seq_len = 17, .micro_batch = 3},
                         Case{.cp = 4, .precision = config::Precision::kBf16}, Case{.cp = 8, .seq_len = 32}}) {
    SCOPED_TRACE(cat("cp ", of.cp, " tp ", of.tp, " tokens ", of.seq_len));
    const Layout layout = layout_of(of);
    const arch::ModelConfig& model = layout.model;
    const auto width = static_cast<double>(model.head_size), size = static_cast<double>(layout.element_size());
    const Formula formula{static_cast<double>(of.cp), static_cast<double>(model.heads / of.tp), static_cast<double>(model.kv_heads / of.tp), width, width, size};
    for (const ContextBytes& mode : context_bytes(layout)) {
      SCOPED_TRACE(text_of(mode));
      if (mode.kind == ContextKind::kRing) {
        EXPECT_DOUBLE_EQ(mode.forward, formula.ring_forward());
        EXPECT_DOUBLE_EQ(mode.backward, formula.ring_backward());
      } else if (mode.kind == ContextKind::kAllGather) {
        EXPECT_DOUBLE_EQ(mode.forward, formula.gather_forward());
        EXPECT_DOUBLE_EQ(mode.backward, formula.gather_backward());
      } else if (mode.kind == ContextKind::kAllToAll) {
        EXPECT_DOUBLE_EQ(mode.forward, formula.heads_each_way());
        EXPECT_DOUBLE_EQ(mode.backward, formula.heads_each_way());
      } else {
        Formula inner = formula, outer = formula;
        inner.n = mode.inner;
        outer.n = formula.n / mode.inner;
        outer.g = inner.heads_needed();
        EXPECT_DOUBLE_EQ(mode.forward, inner.heads_each_way() + mode.inner * outer.ring_forward());
        EXPECT_DOUBLE_EQ(mode.backward, inner.heads_each_way() + mode.inner * outer.ring_backward());
      }
    }
  }
}

TEST(ContextBytes, NameEveryMode) {
  std::vector<std::string> names;
  for (const ContextBytes& mode : context_bytes(layout_of({.cp = 8, .seq_len = 32}))) names.push_back(text_of(mode));
  EXPECT_THAT(names, ElementsAre("ring", "all_gather", "all_to_all", "2d, inner 2", "2d, inner 4"));
  EXPECT_EQ(context_bytes(layout_of({.cp = 16, .seq_len = 32})).size(), 5U);  // ring, all_gather, 2d of 2, 4, 8: 12 heads
}

// Whole blocks: F e h_kv / (2 BW h) tokens (Liu et al. 2023, with grouped heads); zigzag works on half of each and needs twice as many.
TEST(RingBalance, IsThatOfThePaper) {
  for (const config::Precision precision : {config::Precision::kFp32, config::Precision::kBf16}) {
    Layout layout = layout_of({.cp = 4, .seq_len = 64, .micro_batch = 2, .precision = precision});
    const auto size = static_cast<double>(layout.element_size());
    layout.context_split = ContextSplit::kContiguous;
    EXPECT_DOUBLE_EQ(ring_balances(layout).forward.intensity(), size * 4 / (2 * 12));
    EXPECT_DOUBLE_EQ(ring_balances(layout).backward.intensity(), (size + 4) * 4 / (5 * 12));  // five products; gradients in fp32
    layout.context_split = ContextSplit::kZigzag;
    EXPECT_DOUBLE_EQ(ring_balances(layout).forward.intensity(), size * 4 / 12);
    EXPECT_DOUBLE_EQ(ring_balances(layout).backward.intensity(), (size + 4) * 4 / (2.5 * 12));
  }
}

TEST(DrawContext, ByHand) {
  const Layout layout = layout_of({.cp = 2});
  EXPECT_EQ(draw_context(layout, {.flops = 6, .bandwidth = 1}),
            "who holds which tokens of a sequence of 16, 8 each: zigzag\n"
            "\n"
            "rank  tokens\n"
            "0     0..3, 12..15\n"
            "1     4..11\n"
            "\n"
            "whose keys and values each has at each step; behind it they go on to the next\n"
            "\n"
            "        step 0  step 1\n"
            "rank 0       0       1\n"
            "rank 1       1       0\n"
            "\n"
            "work of attention, 1.00 = equal parts: zigzag, this layout's\n"
            "\n"
            "         step 0  step 1   all\n"
            "rank 0     1.06    0.94  1.00\n"
            "rank 1     1.06    0.94  1.00\n"
            "slowest    1.06    0.94  1.00\n"
            "\n"
            "work of attention, 1.00 = equal parts: contiguous\n"
            "\n"
            "         step 0  step 1   all\n"
            "rank 0     1.06    0.00  0.53\n"
            "rank 1     1.06    1.88  1.47\n"
            "slowest    1.06    1.88  1.47\n"
            "\n"
            "tokens of a sequence on a rank from which a step's messages stay behind its products\n"
            "F = 6 FLOP/s of a rank, BW = 1 bytes/s of its link; work: half of the pairs of a step\n"
            "\n"
            "          bytes of a token  FLOPs of a pair      hidden from  here  messages / products\n"
            "forward                128              192  1.33 F / BW = 8     8                 1.00\n"
            "backward               256              480  1.07 F / BW = 6     8                 0.80\n"
            "\n"
            "what a rank sends in a block for each of its tokens\n"
            "\n"
            "mode        forward  backward  in all\n"
            "ring          128 B     384 B   512 B  this layout's\n"
            "all_gather    128 B     256 B   384 B  least\n"
            "all_to_all    256 B     256 B   512 B\n");
}

// Of 16 tokens on 2 ranks, contiguous: one document 36 + 64 pairs of 136 on the last, 36 + 36 of two steps; two halves 36 each.
TEST(DrawContext, OfSequencesOfAFile) {
  Layout layout = layout_of({.cp = 2});
  const ContextQuestion question{.sequences = {{0}, {0, 8}}, .about_sequences = "3 documents"};
  const std::string title = "3 documents\nwork of 2 of them, 1.00 = equal parts: mean and worst sequence\n\n";
  const std::string ring = draw_context(layout, question);
  EXPECT_THAT(ring, HasSubstr(title + "            busiest rank  worst  slowest at every step  worst\n"));
  EXPECT_THAT(ring, HasSubstr("\ncontiguous          1.24   1.47                   1.24   1.47\n"));
  layout.context = ContextKind::kAllGather;
  EXPECT_THAT(draw_context(layout, question), HasSubstr(title + "            busiest rank  worst\n"));
  layout.context = ContextKind::kAllToAll;
  EXPECT_THAT(draw_context(layout, question), HasSubstr("3 documents\nwhatever the documents are, ranks work as their heads say\n"));
}

TEST(DrawContext, OfTheOtherModes) {
  Layout layout = layout_of({.cp = 8, .seq_len = 30});
  layout.context = ContextKind::kAllToAll;
  const std::string heads = draw_context(layout, {});
  EXPECT_THAT(heads, HasSubstr("every rank has all tokens of at most 2 heads of 12: the slowest works 1.33 of equal parts\n"));
  EXPECT_THAT(heads, HasSubstr("\nrank  tokens          behind the end\n0     0..1                         2\n"));  // 30 and 31 of 32
  EXPECT_THAT(heads, Not(HasSubstr("step")));
  layout.context = ContextKind::k2d;
  layout.context_inner = 4;
  EXPECT_THAT(draw_context(layout, {}), HasSubstr("\nranks 4..7    4..7    0..3\n"));
  layout.context = ContextKind::kAllGather;
  layout.seq_len = 16;
  // Of rank r places r and 15 - r: 17 pairs, or 2 r and 2 r + 1: 4 r + 3; 136 in all.
  const std::string gathered = draw_context(layout, {});
  EXPECT_THAT(gathered, HasSubstr("\nzigzag        1.00    1.00    1.00    1.00    1.00    1.00    1.00    1.00     1.00\n"));
  EXPECT_THAT(gathered, HasSubstr("\ncontiguous    0.18    0.41    0.65    0.88    1.12    1.35    1.59    1.82     1.82\n"));
}

TEST(DrawContext, DrawsTheFirstOfManyRanks) {
  const std::string text = draw_context(layout_of({.cp = 16, .tp = 2, .seq_len = 64}), {.documents = {0, 7}});
  EXPECT_THAT(text, HasSubstr("the first 8 of 16 ranks of cp\nand so on in each of 2 groups of cp\n"));
  EXPECT_THAT(text, HasSubstr("documents begin at 0, 7\n"));
  EXPECT_THAT(text, HasSubstr("the first 8 of 16 ranks and steps\n"));
  EXPECT_THAT(text, Not(HasSubstr("step 8")));
}

// A page for every window, and what state spaces pass on.
TEST(DrawContext, OfLayersThatDiffer) {
  const Layout layout = layout_of({.cp = 2, .seq_len = 64, .preset = "hybrid-test"});
  EXPECT_THAT(attention_layers(layout.model), ElementsAre(2, 4));
  const std::string text = draw_context(layout, {.documents = {0, 9}});
  EXPECT_THAT(text, HasSubstr("16..47\n")) << "whole pieces, whatever the documents are";
  EXPECT_THAT(text, HasSubstr("zigzag, in pieces of the whole sequence, for state spaces\n"));
  EXPECT_THAT(text, HasSubstr("\nattention within 24 tokens, as in block 1\n"));
  EXPECT_THAT(text, HasSubstr("\nattention to all tokens before, as in block 3\n"));
  EXPECT_THAT(text, HasSubstr("state spaces take 4 pieces of 16 tokens: every rank gets the last 3 columns of each"));
  const RingWork windowed = ring_work(of_layer(layout, 2), ContextSplit::kContiguous, {0});
  EXPECT_EQ(windowed.all(), 24 * 25 / 2 + 40 * 24);
  EXPECT_EQ(ring_work(of_layer(layout, 4), ContextSplit::kContiguous, {0}).all(), 64 * 65 / 2);
  // The attention of a block is that of the model which has it alone.
  const Layout llama = layout_of({.cp = 2, .seq_len = 64});
  const std::vector<ContextBytes> bytes = context_bytes(of_layer(layout, 4)), alone = context_bytes(llama);
  ASSERT_EQ(bytes.size(), alone.size());
  for (size_t i = 0; i < bytes.size(); ++i) EXPECT_EQ(bytes[i].all(), alone[i].all()) << text_of(bytes[i]);
}

// Of 32 tokens on a rank: columns of 2 pieces, 3 tokens each, as wide as x | B | C, and forward and backward a state of fp32 a piece, to
// one other rank.
TEST(DrawContext, OfStateSpacesAlone) {
  const Layout layout = layout_of({.cp = 2, .seq_len = 64, .preset = "mamba2-test"});
  EXPECT_TRUE(attention_layers(layout.model).empty());
  EXPECT_TRUE(context_bytes(layout).empty());
  const std::string text = draw_context(layout, {});
  EXPECT_THAT(text, Not(HasSubstr("keys and values")));
  const ContextBytes bytes = state_space_bytes(layout);
  EXPECT_GE(bytes.forward * 32, 2 * (3 * (96 + 2 * 16) * 4 + 12 * 8 * 16 * 4));
  EXPECT_GT(bytes.backward, 0);
}

TEST(DrawContext, WithoutCp) { EXPECT_EQ(draw_context(layout_of({.cp = 1}), {}), "every rank holds whole sequences: parallel.cp = 1\n"); }

}  // namespace
}  // namespace lockstep::program
