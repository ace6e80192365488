// What running a template may cost. Every value is made here and charged for as long as it lives, so that no template, however
// it is written, takes more memory, nesting or time than this.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::chat {

class Value;
struct Arguments;

struct RenderLimits {
  int64_t steps = 50'000'000;                     // a node of the template, an element, some characters of a text
  int64_t output_bytes = int64_t{64} << 20;       // what is being written, blocks inside each other together
  int64_t memory_bytes = int64_t{256} << 20;      // of all values and variables at one time
  int64_t text_bytes = int64_t{16} << 20;         // of one text
  int depth = 1000;                               // of expressions, statements and macros inside each other
  int value_depth = 100;                          // of lists and dictionaries
};

// A failure while a template runs, without its place, which the interpreter adds.
struct TemplateFailure {
  std::string code;  // LS1248, LS1249 for raise_exception, LS1250 beyond the limits
  std::string what;
};
[[noreturn]] void fail(const std::string& what);  // LS1248
// At most `most` bytes of a text for a message.
std::string shortened(std::string_view text, size_t most = 300);

class Budget {
 public:
  explicit Budget(const RenderLimits& limits) : limits_(limits), left_(limits.steps) {}
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  const RenderLimits& limits() const { return limits_; }
  // TemplateFailure LS1250 where it is used up.
  void spend(int64_t steps);
  // LS1250 where `bytes` more would be too much: asked before something large is put together.
  void room(int64_t bytes) const;

  Value text(std::string text);
  Value list(std::vector<Value> items, bool tuple = false);
  Value dict(std::vector<std::pair<Value, Value>> items);
  // `holds` is what the function keeps alive.
  Value function(std::string name, std::function<Value(const Arguments&)> call, const Value& holds);
  Value undefined(std::string_view name);
  void check_depth(int depth) const;  // of a value

  // One level deeper for as long as it lives.
  class Level {
   public:
    explicit Level(Budget& budget);
    ~Level() { --budget_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Budget& budget_;
  };

 private:
  friend class Charge;
  RenderLimits limits_;
  int64_t left_;
  int64_t held_ = 0;
  int depth_ = 0;
};

// Bytes that something holds; given back with it. The budget outlives it.
class Charge {
 public:
  Charge() = default;
  Charge(Budget& budget, int64_t bytes) { add(budget, bytes); }
  Charge(Charge&& other) noexcept : budget_(std::exchange(other.budget_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Charge& operator=(Charge&&) = delete;
  ~Charge() {
    if (budget_) budget_->held_ -= bytes_;
  }
  // Always of the same budget.
  void add(Budget& budget, int64_t bytes) {
    budget.room(bytes);
    budget_ = &budget;
    budget.held_ += bytes;
    bytes_ += bytes;
  }

 private:
  Budget* budget_ = nullptr;
  int64_t bytes_ = 0;
};

// A text that is put together: its length and the work are bounded at every step.
class TextBuilder {
 public:
  explicit TextBuilder(Budget& budget) : budget_(budget) {}
  TextBuilder& add(std::string_view part);
  TextBuilder& add(char c) { return add(std::string_view(&c, 1)); }
  bool empty() const { return text_.empty(); }
  std::string take() { return std::move(text_); }

 private:
  Budget& budget_;
  std::string text_;
};

}  // namespace lockstep::chat
