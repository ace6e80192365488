// What a rank of cp holds, predicted.
#include <gtest/gtest.h>

#include "lockstep/arch/model_config.h"
#include "lockstep/program/passes/passes.h"
#include "lockstep/program/predict/memory.h"

namespace lockstep::program {
namespace {

Layout layout_of(int cp, config::ContextKind kind, int64_t seq_len = 1024) {
  mesh::PerAxis degrees = mesh::PerAxis::ones();
  degrees[mesh::Axis::kCp] = cp;
  Layout layout{.model = arch::resolve_model({.preset = "llama-test"}), .mesh = mesh::Mesh(degrees)};
  layout.micro_batch = layout.global_batch = 1;
  layout.seq_len = seq_len;
  layout.context = kind;
  return layout;
}

int64_t activations(const Layout& layout) { return predict_memory(layout, make_program(layout), 0)[MemoryCategory::kActivations]; }

TEST(ContextMemory, ActivationsFallWithTheRanks) {
  for (const config::ContextKind kind : {config::ContextKind::kRing, config::ContextKind::kAllGather}) {
    const double whole = static_cast<double>(activations(layout_of(1, kind)));
    for (const int cp : {2, 4, 8})
      EXPECT_NEAR(static_cast<double>(activations(layout_of(cp, kind))), whole / cp, 0.05 * whole / cp) << "cp " << cp;
  }
}

// Ids, targets and positions of the tokens here, the places of all ranks' tokens, and of every token where its document begins.
TEST(ContextMemory, OfTokensAndTheirPlaces) {
  const auto of_tokens = [](const Layout& layout) {
    return memory_timeline(layout, make_program(layout), 0).before[static_cast<size_t>(MemoryCategory::kActivations)];
  };
  EXPECT_EQ(of_tokens(layout_of(1, config::ContextKind::kRing, 45)), 45 * 2 * 8);
  EXPECT_EQ(of_tokens(layout_of(4, config::ContextKind::kRing, 45)), 12 * (3 * 8 + 2 * 4) + 4 * (4 * 12 + 45));
  Layout documents = layout_of(1, config::ContextKind::kRing, 45);
  documents.document_mask = true;
  EXPECT_EQ(of_tokens(documents), 45 * (3 * 8 + 2 * 4));
}

}  // namespace
}  // namespace lockstep::program
