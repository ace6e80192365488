#include "lockstep/train/stack_dump.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

namespace lockstep::train {
namespace {

TEST(StackDump, AnswersWithTheStackAndGoesOn) {
  std::atomic<int> answers{0};
  std::string stack;  // of the first
  {
    const StackDump dump([&](const std::string& text) {
      if (answers == 0) stack = text;
      ++answers;
    });
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (answers < 3 && std::chrono::steady_clock::now() < deadline) {
      raise(SIGUSR2);
      std::this_thread::yield();
    }
  }
  EXPECT_GE(answers, 3);
  EXPECT_THAT(stack, testing::HasSubstr("libc"));
}

TEST(StackDump, PutsTheHandlerBackAndMayBeUsedAgain) {
  const auto before = signal(SIGUSR2, SIG_IGN);
  for (int time = 0; time < 3; ++time) {
    const StackDump dump([](const std::string&) {});
    raise(SIGUSR2);
  }
  EXPECT_EQ(signal(SIGUSR2, before), SIG_IGN);
}

}  // namespace
}  // namespace lockstep::train
