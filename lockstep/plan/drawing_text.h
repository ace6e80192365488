// Numbers and texts as all pictures and pages of a step show them; drawing.cpp has the functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lockstep::plan {

std::string escaped(std::string_view text);          // & < > "
std::string decimal(double value, int digits = 1);   // fixed, without zeros at its end
std::string percent_text(double share);              // "27.3 %"
// "12.3 ms", or "12.3 units"; in the unit that fits `scale`, so that the marks of an axis agree, else that fits `seconds`.
std::string time_text(double seconds, bool in_units, std::optional<double> scale = std::nullopt);
// A round step that cuts `range` into at most `parts`.
double round_step(double range, int parts);

}  // namespace lockstep::plan
