#include "lockstep/train/console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"

namespace lockstep::train {
namespace {

constexpr int kMaxColumns = 140;
constexpr int64_t kRowsPerHeader = 40;
constexpr double kUnusual = 3;  // z-scores beyond it are coloured

struct Column {
  std::string_view name;
  size_t width;
};
constexpr std::array<Column, 10> kColumns = {{{"step", 13},
                                              {"loss", 8},
                                              {"z", 5},
                                              {"gnorm", 7},
                                              {"lr", 9},
                                              {"tok/s", 6},
                                              {"mfu%", 5},
                                              {"step ms", 8},
                                              {"mem GiB", 8},
                                              {"eta", 7}}};

std::string print_number(const char* format, double value) {
  if (!std::isfinite(value)) return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
  std::array<char, 64> buffer{};
  std::snprintf(buffer.data(), buffer.size(), format, value);
  return buffer.data();
}

std::string optional_number(const char* format, const std::optional<double>& value, double factor = 1) {
  return value ? print_number(format, *value * factor) : "-";
}

constexpr std::array<Column, 2> kExpertColumns = {{{"aux", 7}, {"max/mean", 8}}};  // behind them

template <size_t kCount>
std::string align(const std::array<std::string, kCount>& cells, const std::array<Column, kCount>& columns) {
  std::string line;
  for (size_t i = 0; i < kCount; ++i) line += (i == 0 ? "" : "  ") + pad_left(cells[i], columns[i].width);
  return line;
}

template <size_t kCount>
std::string names_of(const std::array<Column, kCount>& columns) {
  std::array<std::string, kCount> names;
  for (size_t i = 0; i < kCount; ++i) names[i] = columns[i].name;
  return align(names, columns);
}

// The words of `text` in lines of at most `width` columns; a longer word stands alone.
std::vector<std::string> fold(const std::string& text, size_t width) {
  std::vector<std::string> lines = {""};
  for (const std::string& word : split(text, ' ')) {
    if (!lines.back().empty() && lines.back().size() + 1 + word.size() > width) lines.emplace_back();
    lines.back() += (lines.back().empty() ? "" : " ") + word;
  }
  return lines;
}

const char* variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

int terminal_columns(std::FILE* stream) {
  if (const char* columns = variable("COLUMNS")) {
    const int number = std::atoi(columns);
    if (number > 0) return number;
  }
  winsize size{};
  return ::ioctl(::fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kMaxColumns;
}

}  // namespace

std::string format_row_header(bool experts) {
  return experts ? cat(names_of(kColumns), "  ", names_of(kExpertColumns)) : names_of(kColumns);
}

std::string format_row(const StepRow& row) {
  const std::array<std::string, kColumns.size()> cells = {
      {cat(row.step, "/", row.total_steps), print_number("%.4f", row.loss), optional_number("%.1f", row.z),
       print_number(row.grad_norm < 1000 ? "%.3f" : "%.1e", row.grad_norm), print_number("%.2e", row.lr),
       format_count(row.tokens_per_s), optional_number("%.1f", row.mfu, 100),
       print_number(row.step_seconds < 0.1 ? "%.1f" : "%.0f", row.step_seconds * 1000),
       print_number("%.2f", row.memory_gib), row.eta_seconds ? format_duration(*row.eta_seconds) : "-"}};
  const std::string line = align(cells, kColumns);
  if (!row.imbalance) return line;
  return cat(line, "  ",
             align({{optional_number("%.4f", row.aux), optional_number("%.2f", row.imbalance)}}, kExpertColumns));
}

std::string format_header(const HeaderTable& table, int columns) {
  size_t width = 0;
  for (const auto& [name, value] : table.rows) width = std::max(width, name.size());
  const size_t margin = width + 4;
  const auto limit = static_cast<size_t>(std::clamp(columns, 20, kMaxColumns));
  std::string text = table.title + "\n";
  for (const auto& [name, value] : table.rows) {
    bool first = true;
    // A value that is set in columns (it holds runs of spaces) is a picture of its own and is not folded.
    const bool fixed = value.find("  ") != std::string::npos;
    const auto lines = fixed ? std::vector{value} : fold(value, limit > margin + 10 ? limit - margin : 10);
    for (const std::string& line : lines) {
      text += "  " + pad_right(first ? name : "", width) + "  " + line + "\n";
      first = false;
    }
  }
  return text;
}

std::optional<double> LossStatistics::add(double loss) {
  constexpr int64_t kWarmUp = 10;
  if (!std::isfinite(loss)) return std::nullopt;
  std::optional<double> score;
  if (count_ >= kWarmUp) score = variance_ > 0 ? (loss - mean_) / std::sqrt(variance_) : 0;
  // Plain averages over the first `window_` losses, exponential ones from there on.
  const double weight = 1.0 / static_cast<double>(std::min<int64_t>(++count_, window_));
  const double difference = loss - mean_;
  mean_ += weight * difference;
  variance_ = (1 - weight) * (variance_ + weight * difference * difference);
  return score;
}

ConsoleOptions ConsoleOptions::detect(std::FILE* stream) {
  const char* term = variable("TERM");
  const bool terminal = ::isatty(::fileno(stream)) == 1 && !(term != nullptr && std::string_view(term) == "dumb");
  const bool forced = variable("CLICOLOR_FORCE") != nullptr && std::string_view(variable("CLICOLOR_FORCE")) != "0";
  return {.stream = stream,
          .terminal = terminal,
          .color = variable("NO_COLOR") == nullptr && (terminal || forced),
          .columns = terminal ? std::min(kMaxColumns, terminal_columns(stream)) : kMaxColumns};
}

Console::~Console() {
  clear_live();
}

void Console::header(const HeaderTable& table) {
  clear_live();
  std::fputs(format_header(table, options_.columns).c_str(), options_.stream);
  std::fflush(options_.stream);
}

void Console::row(const StepRow& row) {
  if (rows_++ % kRowsPerHeader == 0) print(format_row_header(row.imbalance.has_value()));
  print(painted(row));
}

void Console::live(const StepRow& row) {
  if (!options_.terminal) return;
  // Without a line feed: the next output starts over at the line's begin.
  std::fprintf(options_.stream, "\r%s\x1b[K",
               format_row(row).substr(0, static_cast<size_t>(options_.columns - 1)).c_str());
  std::fflush(options_.stream);
  live_shown_ = true;
}

void Console::note(const std::string& text) {
  print(text);
}

std::string Console::painted(const StepRow& row) const {
  std::string line = format_row(row);
  if (options_.terminal) line.resize(std::min(line.size(), static_cast<size_t>(options_.columns)));
  const bool unusual = !std::isfinite(row.loss) || (row.z && std::abs(*row.z) > kUnusual);
  return options_.color && unusual ? cat("\x1b[33m", line, "\x1b[0m") : line;
}

void Console::print(const std::string& line) {
  clear_live();
  std::fprintf(options_.stream, "%s\n", line.c_str());
  std::fflush(options_.stream);
}

void Console::clear_live() {
  if (!live_shown_) return;
  std::fputs("\r\x1b[K", options_.stream);
  live_shown_ = false;
}

}  // namespace lockstep::train
