// Texts that end a text. What might be the beginning of one is held back until it is known.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::infer {

class StopText {
 public:
  // Empty ones are left out.
  explicit StopText(std::vector<std::string> stops);

  // Takes the next piece and returns what may be shown: everything before a stop text, which itself is never shown.
  std::string push(std::string_view piece);
  bool stopped() const { return stopped_; }
  // What was held back, where the text ended otherwise.
  std::string finish();

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace lockstep::infer
