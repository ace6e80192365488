// The chat template of a Hugging Face model directory.
#pragma once

#include <ctime>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/chat/template.h"

namespace lockstep::chat {

struct Message {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

class ChatTemplate {
 public:
  // chat_template.jinja, or else chat_template of tokenizer_config.json: a text, or a list of named ones of which
  // "default" is taken. Nothing where `dir` has neither. Errors of Template; LS1205 for broken JSON.
  static std::optional<ChatTemplate> load(const std::filesystem::path& dir);

  // The prompt for the next answer of the assistant.
  std::string prompt(const std::vector<Message>& messages, std::time_t now) const;

 private:
  explicit ChatTemplate(Template text) : template_(std::move(text)) {}
  Template template_;
  OrderedJson tokens_ = OrderedJson::object();  // "bos_token": "<s>"
};

}  // namespace lockstep::chat
