#include "lockstep/infer/stop_text.h"

#include <gtest/gtest.h>

namespace lockstep::infer {
namespace {

std::string shown(const std::vector<std::string>& stops, const std::string& text, size_t piece) {
  StopText stop(stops);
  std::string result;
  for (size_t at = 0; at < text.size() && !stop.stopped(); at += piece) result += stop.push(text.substr(at, piece));
  return result + stop.finish();
}

TEST(StopText, EndsBeforeTheFirstOneWhateverThePieces) {
  for (size_t piece = 1; piece < 12; ++piece) {
    EXPECT_EQ(shown({"END", "\n\n"}, "aEN ENEND more", piece), "aEN EN");
    EXPECT_EQ(shown({"END", "\n\n"}, "a\nb\n\nEND", piece), "a\nb");
    EXPECT_EQ(shown({"aab"}, "aaab", piece), "a");
    EXPECT_EQ(shown({"END"}, "all of it EN", piece), "all of it EN");
    EXPECT_EQ(shown({""}, "no stop", piece), "no stop");
  }
}

TEST(StopText, HoldsBackNoMoreThanItMust) {
  StopText stop({"xyz"});
  EXPECT_EQ(stop.push("abx"), "ab");
  EXPECT_EQ(stop.push("y"), "");
  EXPECT_EQ(stop.push("a"), "xya");
  EXPECT_EQ(stop.push("q"), "q");
}

}  // namespace
}  // namespace lockstep::infer
