#include "lockstep/launch/script.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdio>

namespace lockstep::launch {
namespace {

// What bash makes of the word.
std::string read_back(const std::string& word) {
  const std::string command = "bash -c \"$(cat <<'END_OF_TEST'\nprintf %s " + shell_quoted(word) + "\nEND_OF_TEST\n)\"";
  FILE* pipe = popen(command.c_str(), "r");
  std::array<char, 4096> text{};
  const size_t size = fread(text.data(), 1, text.size(), pipe);
  EXPECT_EQ(pclose(pipe), 0) << command;
  return {text.data(), size};
}

TEST(ShellQuoted, IsWhatBashReadsBack) {
  for (const std::string word :
       {"plain", "a b", "it's", "$HOME `x` $(y) \"z\"", "two\nlines", "tab\tand 'quote' and \\ and \x01", "\\n", "",
        "-n", "*", "~", "!", "\xc3\xa9t\xc3\xa9\n"})
    EXPECT_EQ(read_back(word), word) << shell_quoted(word);
  EXPECT_EQ(shell_quoted("--optimizer.lr=1e-4"), "--optimizer.lr=1e-4");
  EXPECT_EQ(shell_quoted("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_quoted("two\nlines").find('\n'), std::string::npos);
}

}  // namespace
}  // namespace lockstep::launch
