// A program of its own: it replaces operator new, to count what is allocated.
// Templates that are written to end the process: each is refused by line, or gives what Jinja gives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/chat/chat_template.h"
#include "lockstep/chat/test_allocations.h"
#include "support/folders.h"

namespace lockstep::chat {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

// An eighth of the usual, for speed.
constexpr RenderLimits kSmall{.steps = 6'000'000, .output_bytes = 8 << 20, .memory_bytes = 32 << 20, .text_bytes = 2 << 20};

std::string render(const std::string& source, const OrderedJson& variables = OrderedJson::object()) {
  try {
    return Template(source, "t").render(variables, 0, kSmall);
  } catch (const DataError& error) {
    return cat(error.message().code, " ", error.message().where, ": ", error.message().what);
  }
}

std::string repeated(std::string_view text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

// `body` 90,000 times.
std::string often(const std::string& before, const std::string& body) {
  return cat(before, "{% for i in range(300) %}{% for j in range(300) %}\n", body, "{% endfor %}{% endfor %}done");
}

TEST(Limits, NamespacesThatHoldThemselves) {
  const std::string two = "{% set a = namespace(n=1) %}{% set b = namespace(n=1) %}{% set a.x = a %}{% set b.x = [b] %}";
  EXPECT_EQ(render(two + "{{ a == b }}{{ a == a }}{{ a != b }}{{ a in [b] }}{{ a in [b, a] }}"), "FalseTrueTrueFalseTrue");
  EXPECT_EQ(render("{{ namespace(n=[1, 'x']) }}"), "<Namespace {'n': [1, 'x']}>");
  for (const char* print : {"{{ a }}", "{{ b }}", "{{ a ~ '' }}", "{{ [a]|string }}", "{{ [b]|join }}", "{{ raise_exception(b) }}"})
    EXPECT_THAT(render(cat(two, "\n", print)), StartsWith("LS1250 t:2: lists and dictionaries are nested deeper than 100"));
  EXPECT_THAT(render(two + "{{ a < b }}"), HasSubstr("have no order"));
  EXPECT_THAT(render(two + "{{ [a]|tojson }}"), HasSubstr("a value of type namespace is no JSON"));
  EXPECT_EQ(render(two + "{{ [[b, 1], [b, 2]]|max|last }}{{ [a, b, a]|unique|list|length }}"), "22");
  EXPECT_EQ(render("{% set n = namespace({1: 2}) %}{% set n.a = 3 %}{% set n.a = 4 %}{{ n.a }}"), "4");
}

TEST(Limits, ValuesInsideEachOther) {
  const std::string deeper = "LS1250 t:2: lists and dictionaries are nested deeper than 100";
  const std::string space = "{% set ns = namespace(v=[]) %}";
  for (const char* grown : {"[ns.v]", "(ns.v,)", "{'k': ns.v}", "dict(k=ns.v)", "[ns.v]|list", "[ns.v].copy", "{'k': ns.v}.items",
                            "[ns.v] + [1]", "[ns.v] * 2", "[ns.v][:]", "{'k': ns.v}|items", "[ns.v]|reverse", "[ns.v]|map('list')",
                            "[ns.v]|select|list", "{'k': ns.v}.values()", "[ns.v]|sort", "[ns.v]|unique"}) {
    const std::string said = render(often(space, cat("{% set ns.v = ", grown, " %}")));
    if (std::string_view(grown) == "[ns.v]|select|list")
      EXPECT_EQ(said, "done");  // an empty list goes
    else
      EXPECT_THAT(said, StartsWith(deeper)) << grown;
  }
  EXPECT_THAT(render("\n{{ " + repeated("[", 45) + repeated("]", 45) + " }}"), StartsWith("\n[[[["));
  // A chain of namespaces, from its first to its last and the other way round, and let go in the middle.
  const std::string chain = "{% set n = namespace(v=0) %}{% set t = ns.v %}{% set t.v = n %}{% set ns.v = n %}";
  EXPECT_EQ(render(often("{% set ns = namespace(v=namespace(v=0)) %}", chain)), "done");
  const std::string back = "{% set n = namespace(v=ns.v) %}{% set ns.v = n %}";
  EXPECT_EQ(render(often(space, back) + "{% set ns.v = 1 %}{{ ns.v }}"), "done1");
}

TEST(Limits, VariablesInsideEachOther) {
  OrderedJson deep = 1;
  for (int i = 0; i < 60; ++i) deep = OrderedJson::array({deep});
  EXPECT_EQ(render("{{ v }}", {{"v", deep}}), repeated("[", 60) + "1" + repeated("]", 60));
  for (int i = 0; i < 60; ++i) deep = OrderedJson::object({{"k", deep}});
  EXPECT_THAT(render("{{ v }}", {{"v", deep}}), StartsWith("LS1250 t:0: lists and dictionaries are nested deeper"));
}

TEST(Limits, LongExpressions) {
  EXPECT_EQ(render("{{ 0" + repeated(" + 1", 12'000) + " }}"), "12000");
  EXPECT_EQ(render("{{ 'a'" + repeated(" ~ 1", 12'000) + " }}"), "a" + repeated("1", 12'000));
  EXPECT_EQ(render("{{ 1" + repeated(" * 1 - 0 // 1", 12'000) + " }}"), "1");
  EXPECT_EQ(render("{{ 1" + repeated(" and 1", 12'000) + repeated(" or 2", 12'000) + " }}"), "1");
  EXPECT_EQ(render("{{ 1" + repeated(" <= 1", 12'000) + " }}"), "True");
  EXPECT_EQ(render("{{ [" + repeated("1,", 12'000) + "]|length }}"), "12000");
  EXPECT_EQ(render("{{ 'a'" + repeated(" 'b'", 12'000) + " }}"), "a" + repeated("b", 12'000));
  for (const char* grown : {"(", "[", "{1:", "-", "not ", "x(", "x[", "1+(", "x.y[", "1 if 2 else ", "x|f("})
    EXPECT_THAT(render("{{ " + repeated(grown, 12'000)), testing::AnyOf(StartsWith("LS1246 t:1"), StartsWith("LS1247 t:1"))) << grown;
  for (const char* grown : {".a", "[0]", "()", "|list", " is true", " if 1", ".0"})
    EXPECT_THAT(render("{{ x" + repeated(grown, 12'000) + " }}"), StartsWith("LS1246 t:1")) << grown;
  // Each bracket holds a row that is deep by itself.
  EXPECT_THAT(render("{{ " + repeated("(", 40) + "x" + repeated(repeated(".a", 100) + ")", 40) + " }}"),
              StartsWith("LS1246 t:1: an expression nested deeper than 400"));
  EXPECT_THAT(render(repeated("{% if x %}{{ x" + repeated("[0", 2), 60)), StartsWith("LS1246"));
  EXPECT_THAT(render("{% if 0 %}" + repeated("{% elif 0 %}", 12'000) + "{% endif %}"), StartsWith("LS1246 t:1: nested deeper"));
  EXPECT_THAT(render("{{ " + repeated("a", 2000) + " }}"), StartsWith("LS1246 t:1: a name of more than 1000"));
  EXPECT_THAT(render("{{ 1e999 }}"), StartsWith("LS1246 t:1: the number 1e999 is beyond a float"));
}

TEST(Limits, CallsInsideEachOther) {
  EXPECT_THAT(render("{% macro m(x) %}\n{{ m([x]) }}{% endmacro %}{{ m(1) }}"), StartsWith("LS1250 t:2: macros call each other deeper than 40"));
  EXPECT_THAT(render("{{ 'a'|map(" + repeated("'map',", 2'000) + "'list')|list }}"), StartsWith("LS1250 t:1: expressions, statements"));
  EXPECT_THAT(render("{% macro m(x) %}" + repeated("{% if 1 %}", 40) + "{{ [[[[m(x)]]]] }}" + repeated("{% endif %}", 40) +
                     "{% endmacro %}{{ m(1) }}"),
              StartsWith("LS1250 t:1: expressions, statements and macros are nested deeper than 1000"));
}

TEST(Limits, MemoryAndTextAreBounded) {
  render("{{ 'a'.upper()|upper is upper }}{{ [].copy }}{{ {}.copy }}");  // makes tables
  const auto most = [](const std::string& source) {
    const int64_t before = allocated_bytes;
    most_allocated_bytes = before;
    EXPECT_THAT(render(source), StartsWith("LS1250 t:")) << source;
    EXPECT_EQ(allocated_bytes, before) << source;
    return (most_allocated_bytes - before) >> 20;
  };
  const std::string list = "{% set ns = namespace(v=['aaaaaaaa'], w='aaaaaaaa') %}{% for i in range(60) %}";
  const std::string doubled = list + "{% set ns.v = [ns.v, ns.v] %}{% endfor %}";
  const std::string long_text = "{% set s = 'ab ' * 600000 %}{% for i in range(100000) %}";
  EXPECT_LT(most(doubled + "{{ ns.v }}"), 16);
  EXPECT_LT(most(doubled + "{{ ns.v|tojson }}"), 16);
  EXPECT_LT(most(doubled + "{{ ns.v|string|length }}"), 16);
  EXPECT_LT(most(doubled + "{{ ns.v == [ns.v[0], [ns.v[1][0], ns.v[1][1] + []]] }}{{ ns.v == [ns.v[0], [ns.v[1][0], ns.v[1][1] + []]] }}{{ ns.v ~ 1 }}"), 16);
  EXPECT_LT(most(list + "{% set ns.v = ns.v + ns.v %}{% endfor %}"), 64);
  EXPECT_LT(most(list + "{% set ns.w = ns.w ~ ns.w %}{% endfor %}"), 16);
  EXPECT_LT(most(list + "{% set ns.v = ns.v + [('x' ~ i) * 900000] %}{% endfor %}"), 64);
  EXPECT_LT(most("{{ 'a' * 99999999999 }}"), 10);
  EXPECT_LT(most("{{ [1] * 99999999999 }}"), 10);
  EXPECT_LT(most(long_text + "{% set x = s|upper %}{% endfor %}"), 64);
  EXPECT_LT(most("{% set s = 'ab ' * 600000 %}{{ s.split('b')|length }}"), 96);
  EXPECT_LT(most("{% set s = 'ab ' * 600000 %}{{ s|list|length }}"), 96);
  EXPECT_LT(most("{% set s = 'ab ' * 600000 %}{{ s.split()|length }}"), 96);
  EXPECT_LT(most("{% set s = 'ab ' * 600000 %}{{ s.replace('', s) }}"), 48);
  EXPECT_LT(most("{% set s = 'ab ' * 600000 %}{{ s.replace('a', s) }}"), 96);
  EXPECT_LT(most("{% set s = 'ab ' * 600000 %}{{ range(900)|join(s) }}"), 32);
  EXPECT_LT(most(long_text + "{% set x = s[::-1] %}{% endfor %}"), 64);
  EXPECT_LT(most(long_text + "{{ s in s ~ 'c' }}{% endfor %}"), 32);
  EXPECT_LT(most(long_text + "{% set x = s.strip(s) %}{% endfor %}"), 96);
  EXPECT_LT(most("{% set s = 'ab ' * 600000 %}" + repeated("{% set x %}{{ s }}", 60) + repeated("{% endset %}", 60)), 64);
  EXPECT_LT(most("{% macro m() %}{% for i in range(3) %}{{ 'ab ' * 600000 }}{% endfor %}{{ m() }}{% endmacro %}{{ m() }}"), 64);
  EXPECT_LT(most("{% for i in range(99999) %}{% for j in range(99999) %}{% set k = loop.changed(loop) %}{% endfor %}{% endfor %}"), 16);
  const std::string quiet = "{% for i in range(1000) %}{% set k = loop.changed(loop, [loop]) %}{% endfor %}{{ 'a' * 99999999 }}";
  EXPECT_LT(most(quiet), 8);
}

TEST(Limits, AFileThatIsTooLargeIsNotRead) {
  const support::ScopedFolder folder("chat-limits");
  const std::filesystem::path file = folder / "chat_template.jinja";
  write_file(file, "{{ messages }}");
  EXPECT_TRUE(ChatTemplate::load(folder.path()));
  std::filesystem::resize_file(file, 64 << 20);
  const int64_t before = allocated_bytes;
  most_allocated_bytes = before;
  try {
    ChatTemplate::load(folder.path());
    FAIL() << "a template of 64 MiB";
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("LS1246: a chat template of 67108864 bytes; 1 MiB is the limit"));
    EXPECT_EQ(error.message().where, file.string());
  }
  EXPECT_LT(most_allocated_bytes - before, 1 << 20);
}

TEST(Limits, NumbersAtTheirEnds) {
  const std::string least = "(-9223372036854775807 - 1)";
  EXPECT_EQ(render("{{ " + least + " % 3 }} {{ " + least + " // 3 }} {{ " + least + " % -1 }} {{ " + least + " % -7 }}"),
            "1 -3074457345618258603 0 -1");
  for (const char* beyond : {" // -1", " - 1", " * -1", "|abs"})
    EXPECT_THAT(render(cat("{{ ", least, beyond, " }}")), HasSubstr("beyond 64 bits"));
  EXPECT_THAT(render("{{ -" + least + " }}"), HasSubstr("beyond 64 bits"));
  EXPECT_EQ(render("{{ 'abc'[" + least + ":9223372036854775807:9223372036854775807] }}{{ 'abc'[::" + least + "] }}"), "ac");
  EXPECT_THAT(render("{{ range(9223372036854775807) }}"), StartsWith("LS1250 t:1: range: more than"));
}

TEST(Limits, MessagesAreShort) {
  for (const char* source : {"{{ raise_exception('x' * 1000000) }}", "{{ {}['x' * 1000000].y }}", "{{ [1]|map('x' * 1000000) }}"})
    EXPECT_LT(render(source).size(), 2500u);
}

}  // namespace
}  // namespace lockstep::chat
