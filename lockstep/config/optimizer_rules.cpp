// [[optimizer.rules]] as texts, "class=norm decay=0": what a list, an override and the resolved file say.
#include "lockstep/base/text.h"
#include "lockstep/config/values.h"

namespace lockstep::config {
namespace {

Complaint unreadable(const std::string& key, const std::string& rule, const std::string& why) {
  return {.code = "LS1046",
          .what = cat(key, ": the rule ", print_value(rule), " ", why),
          .hint = "write match or class, and optimizer, lr or decay: \"class=norm lr=0.5 decay=0\""};
}

Verdict read_member(const std::string& key, const std::string& name, const std::string& text, OptimizerRule& out) {
  const std::string member = cat(key, ".", name);
  if (name == "match") return read_value(member, Value(text), {}, out.match);
  if (name == "class") return read_value(member, Value(text), {}, out.of);
  if (name == "optimizer") return read_value(member, Value(text), {}, out.optimizer);
  if (name == "lr") return read_value(member, parse_scalar(text), {.least = 0}, out.lr);
  if (name == "decay") return read_value(member, parse_scalar(text), {.least = 0}, out.decay);
  const std::vector<std::string> names = {"match", "class", "optimizer", "lr", "decay"};
  const std::string near = nearest(name, names);
  return Complaint{.code = "LS1042",
                   .what = cat("unknown key '", member, "'"),
                   .hint = near.empty() ? cat("a rule has ", join(names, ", ")) : cat("did you mean '", near, "'?")};
}

Verdict read_rule(const std::string& key, const std::string& text, OptimizerRule& out) {
  for (const std::string& word : split(text, ' ')) {
    if (word.empty()) continue;
    const size_t equals = word.find('=');
    if (equals == std::string::npos) return unreadable(key, text, cat("has ", print_value(word), ", which is no key=value"));
    if (Verdict bad = read_member(key, word.substr(0, equals), word.substr(equals + 1), out)) return bad;
  }
  if (out.match.empty() && !out.of) return unreadable(key, text, "names no parameters");
  if (!out.optimizer && !out.lr && !out.decay) return unreadable(key, text, "says nothing of them");
  return std::nullopt;
}

std::string text_of(const OptimizerRule& rule) {
  std::vector<std::string> words;
  if (!rule.match.empty()) words.push_back("match=" + rule.match);
  if (rule.of) words.push_back("class=" + name_of(*rule.of));
  if (rule.optimizer) words.push_back("optimizer=" + name_of(*rule.optimizer));
  if (rule.lr) words.push_back("lr=" + number_text(*rule.lr));
  if (rule.decay) words.push_back("decay=" + number_text(*rule.decay));
  return join(words, " ");
}

}  // namespace

std::string print_value(const OptimizerRules& value) {
  std::vector<std::string> texts;
  for (const OptimizerRule& rule : value.list) texts.push_back(text_of(rule));
  return print_value(texts);
}

std::string type_name(const OptimizerRules&, const Rule&) { return "tables, or texts as \"class=norm decay=0\""; }

// A list of texts, or one text with a semicolon between rules.
Verdict read_value(const std::string& key, const Value& value, const Rule& rule, OptimizerRules& out) {
  std::vector<std::string> texts;
  if (const auto* list = std::get_if<std::vector<std::string>>(&value)) {
    texts = *list;
  } else if (const auto* text = std::get_if<std::string>(&value)) {
    if (!text->empty()) texts = split(*text, ';');
  } else {
    return Complaint{.code = "LS1043",
                     .what = cat(key, " = ", print_value(value), " is no list of rules"),
                     .hint = cat("expected: ", type_name(OptimizerRules{}, rule))};
  }
  OptimizerRules rules;
  for (const std::string& text : texts)
    if (Verdict bad = read_rule(key, text, rules.list.emplace_back())) return bad;
  out = std::move(rules);
  return std::nullopt;
}

}  // namespace lockstep::config
