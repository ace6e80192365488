// What a person sees of training: a header with the resolved layout, then one line per logged step. On a terminal the
// newest line is drawn anew in place, with colours and ETA; a pipe gets plain whole lines. Formatting is pure and
// tested as text.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::train {

struct StepRow {
  int64_t step = 0;
  int64_t total_steps = 0;
  double loss = 0;            // nats per token
  std::optional<double> z{};  // of the loss, against the steps before it
  double grad_norm = 0;
  double lr = 0;
  double tokens_per_s = 0;      // over all ranks
  std::optional<double> mfu{};  // share of the machine's rate, 0..1; nothing where that is unknown
  double step_seconds = 0;
  double memory_gib = 0;  // peak of the worst rank
  std::optional<double> eta_seconds{};
  // Of a model with experts:
  std::optional<double> aux{};        // auxiliary loss of all layers, before its coefficient
  std::optional<double> imbalance{};  // largest over mean load of an expert, of the worst layer
};

// The columns' names with units, and a row under them; both of 94 columns unless a number is too wide, 113 with experts.
std::string format_row_header(bool experts = false);
std::string format_row(const StepRow& row);

// "name   value" lines under a title, values aligned; longer values are folded at `columns`, at most 140.
struct HeaderTable {
  std::string title;
  std::vector<std::pair<std::string, std::string>> rows;  // an empty name continues the row above
};
std::string format_header(const HeaderTable& table, int columns);

// Mean and deviation of the loss over about the last `window` steps: the z-score says how unusual a new loss is.
class LossStatistics {
 public:
  explicit LossStatistics(int window = 100) : window_(window) {}
  // The score of `loss` against what came before it, then takes it in. Nothing during the first 10 steps, nor for a
  // loss that is not finite (which is left out).
  std::optional<double> add(double loss);

 private:
  int window_;
  int64_t count_ = 0;
  double mean_ = 0;
  double variance_ = 0;
};

// Where the lines go and how. `detect` asks the stream and the environment once, at the start.
struct ConsoleOptions {
  std::FILE* stream = stderr;
  bool terminal = false;  // redraw the line in place
  bool color = false;
  int columns = 140;                                         // lines on a terminal are cut here
  static ConsoleOptions detect(std::FILE* stream = stderr);  // isatty, NO_COLOR, CLICOLOR_FORCE, COLUMNS, TERM=dumb
};

class Console {
 public:
  explicit Console(ConsoleOptions options) : options_(options) {}
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  void header(const HeaderTable& table);
  // A row to keep: the columns' names come before it every 40 rows.
  void row(const StepRow& row);
  // A row of a step that is not logged: shown on a terminal until the next, nowhere else.
  void live(const StepRow& row);
  // A line of its own: "checkpoint step-00001200 written in 1.7 s", a warning.
  void note(const std::string& text);

 private:
  void print(const std::string& line);
  std::string painted(const StepRow& row) const;
  void clear_live();
  ConsoleOptions options_;
  int64_t rows_ = 0;
  bool live_shown_ = false;
};

}  // namespace lockstep::train
