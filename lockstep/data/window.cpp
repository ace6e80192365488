#include "lockstep/data/window.h"

#include <algorithm>
#include <numeric>

#include "lockstep/base/check.h"

namespace lockstep::data {
namespace {

void add_fill(int32_t place, Window& window) {
  window.tokens.push_back(0);
  window.targets.push_back(kNoTarget);
  window.positions.push_back(0);
  window.places.push_back(place);
  window.first_seen.push_back(place);
}

}  // namespace

int64_t Window::valid_targets() const {
  return std::ranges::count_if(targets, [](int64_t target) { return target >= 0; });
}

std::vector<int32_t> Window::documents() const {
  std::vector<int32_t> begins;
  for (size_t i = 0; i < places.size(); ++i)
    if (first_seen[i] == places[i]) begins.push_back(places[i]);
  return begins;
}

bool Window::plain() const {
  for (size_t i = 0; i < places.size(); ++i)
    if (first_seen[i] != 0 || positions[i] != static_cast<int64_t>(i) || places[i] != static_cast<int32_t>(i)) return false;
  return true;
}

Window empty_window(int64_t seq_len) {
  Window window;
  for (int64_t place = 0; place < seq_len; ++place) add_fill(static_cast<int32_t>(place), window);
  return window;
}

void set_documents(Window& window, int64_t tokens, std::span<const int32_t> begins, const DocumentRules& rules) {
  LOCKSTEP_CHECK(!begins.empty() && begins.front() == 0 && begins.back() < tokens, "documents of ", tokens, " tokens");
  size_t document = 0;
  for (int64_t i = 0; i < tokens; ++i) {
    while (document + 1 < begins.size() && begins[document + 1] <= i) ++document;
    const auto at = static_cast<size_t>(i);
    window.first_seen[at] = rules.mask ? begins[document] : 0;
    window.positions[at] = rules.reset_positions ? i - begins[document] : i;
  }
}

Window cut(const Window& whole, std::span<const int32_t> places) {
  Window part;
  for (const int32_t place : places) {
    const auto at = static_cast<size_t>(place);
    if (at >= whole.places.size()) {
      add_fill(place, part);
      continue;
    }
    LOCKSTEP_CHECK_EQ(whole.places[at], place, "in a whole sequence");
    part.tokens.push_back(whole.tokens[at]);
    part.targets.push_back(whole.targets[at]);
    part.positions.push_back(whole.positions[at]);
    part.places.push_back(place);
    part.first_seen.push_back(whole.first_seen[at]);
  }
  return part;
}

}  // namespace lockstep::data
