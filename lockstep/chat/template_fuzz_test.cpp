// A program of its own: it replaces operator new, to count what is allocated.
// The whole engine on templates and values that a grammar makes from a seed: each is rendered or refused with one of the
// errors that templates may give, within its limits, and leaves nothing behind. Run under the sanitizers too.
// --gtest_repeat=N makes it N times as long: every repetition goes on with further seeds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <random>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/chat/template.h"
#include "lockstep/chat/test_allocations.h"

namespace lockstep::chat {
namespace {

constexpr int kTemplates = 2000;
constexpr RenderLimits kLimits{.steps = 30'000, .output_bytes = 64 << 10, .memory_bytes = 1 << 20, .text_bytes = 32 << 10};
// What a render may take besides its values: a text by code points, what is sorted, messages.
constexpr int64_t kMostBytes = 4 << 20;

class Grammar {
 public:
  explicit Grammar(uint64_t seed) : random_(seed) {}

  std::string body(int depth) {
    std::string out;
    for (uint64_t n = 1 + below(4); n > 0; --n) out += statement(depth);
    return out;
  }

  OrderedJson json(int depth) {
    switch (below(depth > 0 ? 8 : 6)) {
      case 0: return nullptr;
      case 1: return below(2) == 0;
      case 2: return integer();
      case 3: return static_cast<double>(integer()) / 8;
      case 4:
      case 5: return text();
      case 6: {
        OrderedJson list = OrderedJson::array();
        for (uint64_t n = below(5); n > 0; --n) list.push_back(json(depth - 1));
        return list;
      }
      default: {
        OrderedJson dict = OrderedJson::object();
        for (uint64_t n = below(5); n > 0; --n) dict[text()] = json(depth - 1);
        return dict;
      }
    }
  }

  OrderedJson variables() {
    OrderedJson messages = OrderedJson::array();
    for (uint64_t n = below(4); n > 0; --n)
      messages.push_back({{"role", pick({"user", "assistant", "system"})}, {"content", json(1)}, {"n", integer()}});
    return {{"messages", messages}, {"a", json(3)}, {"b", json(3)}, {"s", text()}, {"l", OrderedJson::array({3, 1, 2})}};
  }

  // Bytes changed at random.
  std::string damaged(std::string text) {
    for (uint64_t changes = below(4); changes > 0 && !text.empty(); --changes) {
      const size_t at = below(text.size());
      const size_t span = std::min<size_t>(text.size() - at, 1 + below(24));
      switch (below(5)) {
        case 0: text[at] = static_cast<char>(random_()); break;
        case 1: text.erase(at, span); break;
        case 2: text.insert(at, text.substr(at, span)); break;
        case 3: text.insert(below(text.size()), text.substr(at, span)); break;
        default: text.insert(at, pick({"{{", "}}", "{%", "%}", "{#", "-", "(", ")", "[", "]", "'", "\\", "|", ".", "not ", "\xff", "\n"}));
      }
    }
    return text;
  }

 private:
  uint64_t below(uint64_t limit) { return random_() % limit; }
  std::string pick(std::initializer_list<std::string_view> choices) { return std::string(*(choices.begin() + below(choices.size()))); }

  int64_t integer() {
    switch (below(6)) {
      case 0: return static_cast<int64_t>(random_());
      case 1: return std::numeric_limits<int64_t>::min() + static_cast<int64_t>(below(2));
      case 2: return std::numeric_limits<int64_t>::max() - static_cast<int64_t>(below(2));
      default: return static_cast<int64_t>(below(7)) - 3;
    }
  }
  std::string text() { return pick({"", "a", "b c", "\u00e9\u2603", "A\nb\r\n", "'\"\\", "{{ x }}", "\xff\xc3", "12", "-1.5", "  x  ", "n", "role"}); }

  std::string name() { return pick({"a", "b", "c", "s", "l", "ns", "ns.v", "ns.w", "messages", "m", "loop", "x", "missing", "range", "f"}); }

  std::string number() {
    return pick({"0", "1", "2", "-1", "3", "7", "9", "1.5", "1e3", "9223372036854775807", "-9223372036854775807 - 1", "99999", "1000000000"});
  }

  std::string atom() {
    switch (below(6)) {
      case 0: return number();
      case 1: return pick({"'a'", "\"b c\"", "''", "'\\u00e9\\n'", "'%Y'", "'role'", "'n'", "'x' 'y'"});
      case 2: return pick({"true", "false", "none", "[]", "{}", "()", "loop.index", "loop.changed", "loop.previtem", "messages[0].role", "f"});
      default: return name();
    }
  }

  std::string list_of(int depth, std::string_view open, std::string_view close) {
    std::string out(open);
    for (uint64_t n = below(4); n > 0; --n) out += expression(depth - 1) + ", ";
    return out + std::string(close);
  }

  std::string arguments(int depth) {
    std::string out = "(";
    for (uint64_t n = below(3); n > 0; --n) {
      if (out.size() > 1) out += ", ";
      if (below(4) == 0 && n == 1) out += pick({"attribute=", "default=", "reverse=", "indent=", "x=", "v=", "sort_keys=", "width="});
      out += below(3) == 0 ? pick({"'upper'", "'map'", "'list'", "'defined'", "'role'", "'n'", "'0.v'"}) : expression(depth - 1);
    }
    return out + ")";
  }

  std::string filter() {
    return pick({"abs", "attr", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "indent", "int", "items",
                 "join", "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "replace", "reverse", "round",
                 "safe", "select", "selectattr", "sort", "string", "sum", "title", "tojson", "trim", "unique", "upper"});
  }
  std::string test() {
    return pick({"boolean", "callable", "defined", "divisibleby", "eq", "even", "false", "filter", "float", "ge", "gt", "in", "integer",
                 "iterable", "le", "lower", "lt", "mapping", "ne", "none", "number", "odd", "sameas", "sequence", "string", "test", "true",
                 "undefined", "upper"});
  }
  std::string method() {
    return pick({"strip", "lstrip", "rstrip", "split", "rsplit", "splitlines", "startswith", "endswith", "upper", "lower", "title",
                 "capitalize", "replace", "find", "rfind", "count", "join", "removeprefix", "removesuffix", "isdigit", "isspace", "isupper",
                 "islower", "get", "items", "keys", "values", "copy", "index", "append", "v", "role"});
  }

  std::string expression(int depth) {
    if (depth <= 0) return atom();
    const auto sub = [&] { return expression(depth - 1); };
    switch (below(16)) {
      case 0:
      case 1: return cat("(", sub(), " ", pick({"+", "-", "*", "/", "//", "%", "**", "~", "~", "+"}), " ", sub(), ")");
      case 2: return cat("(", sub(), " ", pick({"==", "!=", "<", "<=", ">", ">=", "in", "not in"}), " ", sub(), ")");
      case 3: return cat("(", sub(), pick({" and ", " or "}), sub(), ")");
      case 4: return cat("(", pick({"not ", "-", "+"}), sub(), ")");
      case 5: return cat("(", sub(), " if ", sub(), below(3) == 0 ? "" : cat(" else ", sub()), ")");
      case 6:
      case 7: return cat(sub(), "|", filter(), below(2) == 0 ? "" : arguments(depth));
      case 8: return cat("(", sub(), " is ", below(3) == 0 ? "not " : "", test(), below(2) == 0 ? "" : arguments(depth), ")");
      case 9: return cat(sub(), ".", method(), below(4) == 0 ? "" : arguments(depth));
      case 10: return cat(sub(), "[", sub(), "]");
      case 11: return cat(sub(), "[", below(2) == 0 ? sub() : "", ":", below(2) == 0 ? sub() : "", below(2) == 0 ? cat(":", sub()) : "", "]");
      case 12: return list_of(depth, "[", "]");
      case 13: return list_of(depth, "(", ")");
      case 14: return cat("{", sub(), ": ", sub(), ", 'v': ", sub(), "}");
      default: return cat(pick({"range", "dict", "namespace", "f", "strftime_now", "raise_exception", "loop.cycle", "loop.changed"}), arguments(depth));
    }
  }

  // What makes a value larger or deeper each time it runs.
  std::string growth() {
    return pick({"{% set ns.v = [ns.v, ns.v] %}", "{% set ns.v = ns.v ~ ns.v %}", "{% set ns.v = ns.v + ns.v %}", "{% set ns.w = namespace(v=ns.w) %}",
                 "{% set ns.v = {'k': ns.v} %}", "{% set ns.v = ns %}", "{% set ns.w = [ns] %}", "{% set ns.v = [ns.v].copy %}",
                 "{% set ns.v = ns.v * 3 %}", "{% set ns.w = loop %}", "{% set ns.v = ns.v|list + [ns.w] %}", "{% set ns.v = ns.v|tojson %}",
                 "{% set x = loop.changed(loop) %}", "{% set ns.v = 'a' * 9000 %}", "{% set ns.w = ns.v|string %}", "{% set ns.f = f %}"});
  }

  std::string block(std::string_view open, int depth, std::string_view close) { return cat(open, body(depth - 1), close); }

  std::string statement(int depth) {
    const std::string e = expression(1 + static_cast<int>(below(3)));
    if (depth <= 0) return below(2) == 0 ? cat("{{ ", e, " }}") : growth();
    switch (below(14)) {
      case 0: return pick({"text\n", "  ", "{# c #}", "{%- raw -%} {{ {% endraw %}", "\u2603", "\xff"});
      case 1: return cat("{% set ", pick({"a", "b", "c", "x", "ns.v", "ns.w", "a, b"}), " = ", e, " %}");
      case 2: return block(cat("{% for ", pick({"m", "x", "a, b"}), " in ", e, below(3) == 0 ? cat(" if ", expression(1)) : "", " %}"), depth,
                           cat(below(3) == 0 ? "{% else %}z" : "", "{% endfor %}"));
      case 3:
      case 4: return block(cat("{% for m in range(", pick({"3", "9", "200", "50"}), ") %}"), depth, cat(growth(), "{% endfor %}"));
      case 5: return block(cat("{% if ", e, " %}"), depth, cat(below(2) == 0 ? "{% elif b %}y{% else %}n" : "", "{% endif %}"));
      case 6: return block("{% set x %}", depth, "{% endset %}");
      case 7: return block(cat("{% macro f(x", below(2) == 0 ? "" : ", y=1", ") %}"), depth, "{{ f(x) }}{% endmacro %}");
      case 8: return block(cat("{% filter ", filter(), " %}"), depth, "{% endfilter %}");
      case 9: return block(cat("{% with c = ", e, " %}"), depth, "{% endwith %}");
      case 10: return block("{% generation %}", depth, "{% endgeneration %}");
      case 11: return growth();
      case 12: return pick({"{% for m in l %}{{ m }}{% break %}{% endfor %}", "{{ f(1) }}", "{{ ns }}", "{{ ns == ns.v }}", "{{ [ns.v]|tojson }}"});
      default: return cat("{{ ", e, " }}");
    }
  }

  std::mt19937_64 random_;
};

struct Outcome {
  std::string text, code;
};

Outcome render(const std::string& source, const OrderedJson& variables, const RenderLimits& limits) {
  try {
    return {.text = Template(source, "t").render(variables, 0, limits), .code = ""};
  } catch (const DataError& error) {
    EXPECT_THAT(error.message().where, testing::StartsWith("t:")) << source;
    EXPECT_LT(error.message().what.size(), 2100u) << source;
    return {.text = error.message().what, .code = error.message().code};
  }
}

TEST(TemplateFuzz, IsRenderedOrRefusedWithinItsLimits) {
  static uint64_t seed = 0;  // goes on from repetition to repetition
  std::map<std::string, int> seen;
  render("{{ 'a'.upper()|upper is upper }}{{ [].copy }}{{ {}.copy }}{{ strftime_now('%c') }}", OrderedJson::object(), kLimits);  // makes tables
  for (int i = 0; i < kTemplates; ++i) {
    Grammar grammar(++seed);
    std::string source = "{% set ns = namespace(v=a, w=1) %}" + grammar.body(4);
    if (i % 4 == 0) source = grammar.damaged(source);
    const OrderedJson variables = grammar.variables();
    const int64_t before = allocated_bytes;
    most_allocated_bytes = before;
    std::string code;
    {
      const Outcome first = render(source, variables, kLimits);
      code = first.code;  // too short to be allocated
      if (first.code.empty()) {
        EXPECT_LE(first.text.size(), static_cast<size_t>(kLimits.output_bytes)) << source;
      } else {
        EXPECT_THAT(first.code, testing::AnyOf("LS1246", "LS1247", "LS1248", "LS1249", "LS1250")) << source;
      }
      EXPECT_LT(most_allocated_bytes - before, kMostBytes + kLimits.memory_bytes) << "seed " << seed << ": " << source;
      if (i % 8 == 0) {
        const Outcome second = render(source, variables, kLimits);
        EXPECT_EQ(second.code, first.code) << source;
        EXPECT_EQ(second.text, first.text) << source;
      }
    }
    EXPECT_EQ(allocated_bytes, before) << "seed " << seed << ": " << source;
    ++seen[code];
    if (HasFailure()) return;
  }
  // All of the engine is reached: much is rendered, and every kind of refusal is there.
  EXPECT_GT(seen[""], kTemplates / 20);
  for (const char* code : {"LS1246", "LS1248", "LS1249", "LS1250"}) EXPECT_GT(seen[code], kTemplates / 400) << code;
}

}  // namespace
}  // namespace lockstep::chat
