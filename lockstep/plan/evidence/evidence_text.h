// The table of errors, for a terminal and for the documentation.
#pragma once

#include <string>

#include "lockstep/plan/evidence/replay.h"

namespace lockstep::plan {

struct EvidenceTextOptions {
  bool markdown = false;  // tables with bars, sections with ###
  size_t worst = 10;      // rows that are furthest off, each with its largest terms
};

// By source, tier and device: rows, median and P90 of the absolute error, bias, order, how many lie in the band; memory by kind; what is furthest
// off; what could not be laid out, with reasons.
std::string evidence_text(const Evidence& evidence, const EvidenceTextOptions& options = {});

}  // namespace lockstep::plan
