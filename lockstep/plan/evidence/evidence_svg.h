// Predicted over measured step times as a picture.
#pragma once

#include <string>

#include "lockstep/plan/evidence/replay.h"

namespace lockstep::plan {

// SVG that stands alone: a point for each run that was compared, both axes logarithmic, with the line where both are equal and those 5 % and 12 %
// off. A source has a colour (Okabe and Ito) and a mark, so none is told by colour alone; runs of tier C are hollow. Light and dark. Refers to
// nothing outside.
std::string evidence_svg(const Evidence& evidence);

}  // namespace lockstep::plan
