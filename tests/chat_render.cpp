// Renders chat templates for chat_template_test.py: a JSON object a line on standard input, {"template", "variables",
// "now"}; a line each on standard output, {"text"} or {"code", "where", "what"}.
#include <iostream>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/chat/template.h"

int main() {
  using namespace lockstep;
  for (std::string line; std::getline(std::cin, line);) {
    const OrderedJson request = OrderedJson::parse(line);
    OrderedJson answer;
    try {
      const chat::Template text(request.at("template").get<std::string>(), "template");
      answer["text"] = text.render(request.at("variables"), request.value("now", 0));
    } catch (const Error& error) {
      answer = {{"code", error.message().code}, {"where", error.message().where}, {"what", error.message().what}};
    }
    std::cout << answer.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) << "\n";
  }
}
