#include "lockstep/train/console.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <functional>

#include "lockstep/base/text.h"

namespace lockstep::train {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

StepRow example() {
  return {.step = 1200,
          .total_steps = 20000,
          .loss = 2.81341,
          .z = -0.42,
          .grad_norm = 0.8712,
          .lr = 2.9e-4,
          .tokens_per_s = 412345,
          .mfu = 0.402,
          .step_seconds = 0.3181,
          .memory_gib = 61.3,
          .eta_seconds = 5940};
}

TEST(Console, RowGolden) {
  EXPECT_EQ(format_row_header() + "\n" + format_row(example()) + "\n",
            "         step      loss      z    gnorm         lr   tok/s   mfu%   step ms   mem GiB      eta\n"
            "   1200/20000    2.8134   -0.4    0.871   2.90e-04    412k   40.2       318     61.30    1h39m\n");
}

TEST(Console, WhatIsUnknownIsADash) {
  StepRow row = example();
  row.z.reset();
  row.mfu.reset();
  row.eta_seconds.reset();
  row.loss = std::nan("");
  row.grad_norm = 123456;
  row.step_seconds = 0.0123;
  EXPECT_EQ(format_row(row),
            "   1200/20000       nan      -  1.2e+05   2.90e-04    412k      -      12.3     61.30        -");
  EXPECT_EQ(format_row(row).size(), format_row_header().size());
}

TEST(Console, ExpertsHaveColumnsOfTheirOwn) {
  StepRow row = example();
  row.aux = 4.0137;
  row.imbalance = 1.62;
  EXPECT_EQ(format_row_header(true), format_row_header() + "      aux  max/mean");
  EXPECT_EQ(format_row(row), format_row(example()) + "   4.0137      1.62");
}

TEST(Console, HeaderTableGolden) {
  const HeaderTable table{.title = "lockstep 0.1.0  runs/demo",
                          .rows = {{"model", "gpt2 4 x 128"},
                                   {"layout", "dp 2 (ring all-reduce, 25 MiB buckets), one two three four"},
                                   {"memory", "parameters  3.1 MiB"},
                                   {"", "gradients   3.1 MiB"}}};
  EXPECT_EQ(format_header(table, 50),
            "lockstep 0.1.0  runs/demo\n"
            "  model   gpt2 4 x 128\n"
            "  layout  dp 2 (ring all-reduce, 25 MiB buckets),\n"
            "          one two three four\n"
            "  memory  parameters  3.1 MiB\n"
            "          gradients   3.1 MiB\n");
}

TEST(Console, LossStatistics) {
  LossStatistics statistics;
  for (int i = 0; i < 10; ++i) EXPECT_EQ(statistics.add(i % 2 == 0 ? 1 : 3), std::nullopt);
  // Mean 2, deviation 1.
  EXPECT_NEAR(statistics.add(5).value(), 3, 1e-12);
  EXPECT_EQ(statistics.add(std::nan("")), std::nullopt);
}

// Environment variables for the time of a test, unset afterwards; an empty value is none.
class Variables {
 public:
  explicit Variables(std::vector<std::pair<std::string, std::string>> values) : values_(std::move(values)) {
    for (const auto& [name, value] : values_)
      value.empty() ? ::unsetenv(name.c_str()) : ::setenv(name.c_str(), value.c_str(), 1);
  }
  ~Variables() {
    for (const auto& [name, value] : values_) ::unsetenv(name.c_str());
  }
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;

 private:
  std::vector<std::pair<std::string, std::string>> values_;
};

// What a console writes into a file.
std::string written(ConsoleOptions options, const std::function<void(Console&)>& use) {
  std::FILE* file = std::tmpfile();
  options.stream = file;
  {
    Console console(options);
    use(console);
  }
  std::string text(static_cast<size_t>(std::ftell(file)), '\0');
  std::rewind(file);
  EXPECT_EQ(std::fread(text.data(), 1, text.size(), file), text.size());
  std::fclose(file);
  return text;
}

TEST(Console, PlainLinesForAPipe) {
  const std::string text = written({}, [](Console& console) {
    for (int i = 0; i < 41; ++i) console.row(example());
    console.live(example());
    console.note("checkpoint step-00001200");
  });
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 41 + 2 + 1);  // the columns' names come twice
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_THAT(text, Not(HasSubstr("\r")));
  EXPECT_TRUE(text.ends_with("checkpoint step-00001200\n"));
}

TEST(Console, TerminalRedrawsInPlace) {
  StepRow spike = example();
  spike.z = 4;
  const ConsoleOptions options{.terminal = true, .color = true, .columns = 30};
  const std::string text = written(options, [&](Console& console) {
    console.live(example());
    console.row(spike);
  });
  EXPECT_THAT(text, HasSubstr(cat("\r", format_row(example()).substr(0, 29), "\x1b[K\r\x1b[K")));
  EXPECT_THAT(text, HasSubstr(cat("\x1b[33m", format_row(spike).substr(0, 30), "\x1b[0m\n")));
}

// What a terminal of `columns` shows of a console that finds out by itself that it is one.
std::string shown_on_terminal(unsigned short columns, const std::function<void(Console&)>& use) {
  const int master = ::posix_openpt(O_RDWR | O_NOCTTY);
  EXPECT_GE(master, 0);
  EXPECT_EQ(::grantpt(master), 0);
  EXPECT_EQ(::unlockpt(master), 0);
  const winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
  EXPECT_EQ(::ioctl(master, TIOCSWINSZ, &size), 0);
  std::FILE* terminal = std::fopen(::ptsname(master), "w");
  termios settings{};
  EXPECT_EQ(::tcgetattr(::fileno(terminal), &settings), 0);
  settings.c_oflag &= ~static_cast<tcflag_t>(OPOST);  // line feeds stay line feeds
  EXPECT_EQ(::tcsetattr(::fileno(terminal), TCSANOW, &settings), 0);
  {
    Console console(ConsoleOptions::detect(terminal));
    use(console);
  }
  std::fputc('\x04', terminal);  // the end, for the loop below
  std::fflush(terminal);
  std::string text;
  for (char c = 0; ::read(master, &c, 1) == 1 && c != '\x04';) text += c;
  std::fclose(terminal);
  ::close(master);
  return text;
}

TEST(Console, TheLiveLineOfARealTerminalIsCutToItAndGivesWay) {
  const Variables variables({{"TERM", "xterm"}, {"COLUMNS", ""}, {"NO_COLOR", "1"}});
  const std::string row = format_row(example());
  const std::string text = shown_on_terminal(60, [&](Console& console) {
    console.live(example());
    console.live(example());
    console.note("checkpoint step-00001200");
    console.live(example());
  });
  const std::string live = cat("\r", row.substr(0, 59), "\x1b[K");
  EXPECT_EQ(text, cat(live, live, "\r\x1b[K", "checkpoint step-00001200\n", live, "\r\x1b[K"));
}

TEST(Console, AFileIsNoTerminal) {
  std::FILE* file = std::tmpfile();
  EXPECT_FALSE(ConsoleOptions::detect(file).terminal);
  EXPECT_EQ(ConsoleOptions::detect(file).columns, 140);
  std::fclose(file);
}

}  // namespace
}  // namespace lockstep::train
