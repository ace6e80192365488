#include "lockstep/chat/chat_template.h"

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/chat/syntax.h"

namespace lockstep::chat {
namespace {

namespace fs = std::filesystem;

// A special token is a text, or an object whose "content" is one.
std::optional<std::string> token_text(const Json& token) {
  if (token.is_string()) return token.get<std::string>();
  if (token.is_object() && token.contains("content") && token["content"].is_string()) return token["content"].get<std::string>();
  return std::nullopt;
}

std::optional<std::string> named_template(const Json& config) {
  const auto found = config.find("chat_template");
  if (found == config.end()) return std::nullopt;
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_array()) return std::nullopt;
  for (const Json& entry : *found) {
    if (entry.is_object() && entry.contains("name") && entry["name"] == "default" && entry.contains("template") &&
        entry["template"].is_string())
      return entry["template"].get<std::string>();
  }
  return std::nullopt;
}

}  // namespace

std::optional<ChatTemplate> ChatTemplate::load(const fs::path& dir) {
  const fs::path config_file = dir / "tokenizer_config.json", jinja_file = dir / "chat_template.jinja";
  const Json config = fs::exists(config_file) ? read_json(config_file) : Json::object();
  std::optional<std::string> source;
  if (fs::is_regular_file(jinja_file)) require_template_size(fs::file_size(jinja_file), jinja_file.string());
  if (fs::exists(jinja_file))
    source = read_file(jinja_file);
  else if (config.is_object())
    source = named_template(config);
  if (!source) return std::nullopt;
  ChatTemplate result(Template(*source, (fs::exists(jinja_file) ? jinja_file : config_file).string()));
  for (const auto& [key, value] : config.items()) {
    const std::optional<std::string> text = key.ends_with("_token") ? token_text(value) : std::nullopt;
    if (text) result.tokens_[key] = *text;
  }
  return result;
}

std::string ChatTemplate::prompt(const std::vector<Message>& messages, std::time_t now) const {
  OrderedJson variables = tokens_;
  variables["messages"] = OrderedJson::array();
  for (const Message& message : messages)
    variables["messages"].push_back({{"role", message.role}, {"content", message.content}});
  variables["add_generation_prompt"] = true;
  return template_.render(variables, now);
}

}  // namespace lockstep::chat
