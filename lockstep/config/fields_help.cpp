// The table of fields as text: --help, and docs/config.md.
#include "lockstep/base/text.h"
#include "lockstep/config/fields.h"

namespace lockstep::config {
namespace {

std::string with_unit(const std::string& text, const std::string& unit) {
  return unit.empty() ? text : text + " " + unit;
}

}  // namespace

std::string fields_help() {
  std::string text;
  for (const Section& section : sections()) {
    text += cat("\n  ", section.help, "\n");
    for (const Field& field : section.fields) {
      const std::string value = field.default_text();
      const std::string shown = value.empty() || value == "\"\"" ? "" : cat(" [", with_unit(value, field.unit), "]");
      text += cat("    ", pad_right(cat("--", field.key(), "=", field.type), 54), "  ", field.help, shown, "\n");
    }
  }
  return text;
}

std::string config_reference_markdown() {
  std::string text =
      "# Configuration\n\n"
      "<!-- Written by `lockstep config docs > docs/config.md` from lockstep/config/fields.cpp. -->\n\n"
      "A run is described by TOML files and by overrides on the command line:\n"
      "`lockstep train base.toml mine.toml --optimizer.lr=1e-4`. Later wins: defaults, then what a file `extends`,\n"
      "then the file, the files in order, the overrides. Unknown keys are refused. Integers may be written `20_000`.\n"
      "`config.resolved.toml` in the run directory has every value and where it came from.\n\n"
      "`extends = \"base.toml\"`, above the first section, reads another file first; the path is relative to the file\n"
      "that says it and stays inside that folder.\n\n"
      "All ranks of a run must have the same values, and compare them before the first step (LS1103); a key whose value\n"
      "may be another on each rank says so.\n";
  for (const Section& section : sections()) {
    text += cat("\n## [", section.name, "]\n\n", section.help, "\n\n");
    text += "| key | type | default | meaning |\n|---|---|---|---|\n";
    for (const Field& field : section.fields) {
      std::string type = field.type;
      for (size_t at = 0; (at = type.find('|', at)) != std::string::npos; at += 2) type.insert(at, "\\");
      const std::string value = field.default_text();
      text += cat("| `", field.name, "` | ", with_unit(type, field.unit), " | ", value.empty() ? "" : "`" + value + "`",
                  " | ", field.help, field.may_differ.empty() ? "" : cat("; ranks may differ: ", field.may_differ), " |\n");
    }
  }
  return text;
}

}  // namespace lockstep::config
