// What `lockstep show context` is asked, and its form as JSON.
#pragma once

#include "apps/lockstep/command_line.h"
#include "lockstep/base/json.h"
#include "lockstep/program/render/draw_context.h"

namespace lockstep::apps {

// Of --documents, --sequences, --flops and --bandwidth. ConfigError LS1005 where one is no number above 0, LS1004 where documents are longer
// than a sequence, or see each other; of data.train the errors of reading it.
program::ContextQuestion context_question(const CommandLine& command_line, const config::RunConfig& config, const program::Layout& layout);

OrderedJson context_json(const program::Layout& layout, const program::ContextQuestion& question);

}  // namespace lockstep::apps
