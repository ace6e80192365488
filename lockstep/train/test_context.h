// Ranks that hold sequences in parts, under `verify`: data of many documents, and the fields of a layout; for the tests of this room.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/data/token_file.h"
#include "lockstep/train/test_verify.h"

namespace lockstep::train::testing {

using Fields = std::vector<std::string>;

inline Fields operator+(Fields a, const Fields& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Documents of 1 token to more than two sequences.
inline constexpr int kDocumentLengths[] = {7, 1, 12, 3, 1, 5, 40, 2, 16, 4, 9, 1, 6, 23, 2, 11};

// Made once; its path without ending.
inline std::string document_tokens() {
  const std::filesystem::path prefix = folder() / "documents";
  if (std::filesystem::exists(data::idx_path(prefix))) return prefix.string();
  std::filesystem::create_directories(folder());
  data::TokenFileWriter writer(prefix, 512);
  int32_t place = 0;
  for (int round = 0; round < 28; ++round)
    for (const int length : kDocumentLengths) {
      std::vector<int32_t> ids;
      for (int i = 0; i < length; ++i, ++place) ids.push_back(static_cast<int32_t>(int64_t{place} * place % 509));
      writer.add_document(ids);
    }
  writer.finish();
  return prefix.string();
}

// Sequences of whole documents; a stream whose documents do not see each other; and one in which positions go on all the same.
inline Fields packed() { return {cat("data.train=", document_tokens()), "data.pack=documents"}; }
inline Fields masked() { return {cat("data.train=", document_tokens()), "data.document_mask=true"}; }
inline Fields masked_in_place() { return masked() + Fields{"data.reset_positions=false"}; }

inline Fields cp(const std::string& kind, int ranks, const std::string& split = "zigzag") {
  Fields fields = {cat("parallel.cp=", ranks), cat("parallel.context=", kind), cat("parallel.context_split=", split)};
  if (kind == "2d") fields.push_back("parallel.context_inner=2");
  return fields;
}

inline Fields tp(int ranks) { return {cat("parallel.tp=", ranks)}; }
inline Fields ep(int ranks, int etp = 1) { return {cat("parallel.ep=", ranks), cat("parallel.etp=", etp)}; }
inline Fields zero(int stage) { return {cat("parallel.zero=", stage)}; }
inline Fields seq(int length) { return {cat("train.seq_len=", length)}; }
inline Fields pp(const std::string& schedule) { return {"parallel.pp=2", cat("parallel.schedule=", schedule), "model.layers=4"}; }
inline Fields recompute(const std::string& choice) { return {cat("memory.recompute=", choice)}; }

// Of each family the smallest; the losses of experts are on, so that their scale must not follow the layout.
inline Fields model(const std::string& family) {
  const Fields experts = {"model.layers=2", "moe.z_coefficient=0.01"};
  if (family == "mixtral") return Fields{"model.preset=mixtral-test", "model.experts=4"} + experts;
  if (family == "deepseek") return Fields{"model.preset=deepseek-test"} + experts;
  return {cat("model.preset=", family, "-test"), "model.layers=2"};
}

struct Case {
  int ranks = 2;
  Fields fields{};
};

// Two steps: the second begins with slots.
inline void expect_all_right(const std::vector<Case>& cases) {
  for (const Case& one : cases) {
    SCOPED_TRACE(cat(one.ranks, " ranks ", join(one.fields, " ")));
    expect_right({.ranks = one.ranks, .fields = one.fields, .options = {.steps = 2, .free = 0}});
  }
}

}  // namespace lockstep::train::testing
