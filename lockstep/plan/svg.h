// Small pieces of SVG and HTML.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::plan {

std::string escaped(std::string_view text);   // & < > "
std::string decimal(double value, int digits = 1);  // fixed, without zeros at its end
// "12.3 ms", or "12.3 units".
std::string time_text(double seconds, bool in_units);
// The same in the unit that fits `scale`: the marks of an axis agree.
std::string time_text(double seconds, bool in_units, double scale);
// A round step that cuts `range` into at most `parts`.
double round_step(double range, int parts);

}  // namespace lockstep::plan
