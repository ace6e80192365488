#include "lockstep/data/post_processor.h"

#include "lockstep/base/text.h"

namespace lockstep::data {
namespace {

std::vector<int32_t> ids_of(const Component& token, int64_t max_id) {
  token.allow_only({"id", "ids", "tokens"});
  const Json& values = token.at("ids");
  if (!values.is_array()) token.malformed("member \"ids\" is not a list");
  std::vector<int32_t> ids;
  for (const Json& value : values) {
    // Held in an object, so that one check reads every number of the file.
    const Json object = {{"ids", value}};
    ids.push_back(static_cast<int32_t>(Component(object, token.path(), token.file()).integer("ids", 0, max_id)));
  }
  return ids;
}

}  // namespace

PostProcessor::PostProcessor(const Component& component, int64_t max_id) {
  add(component, max_id);
}

void PostProcessor::add(const Component& component, int64_t max_id) {
  const std::string type = component.type();
  if (type == "ByteLevel") {
    component.allow_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  } else if (type == "TemplateProcessing") {
    if (has_template_) component.unsupported("is a second template");
    read_template(component, max_id);
  } else if (type == "Sequence") {
    component.allow_only({"type", "processors"});
    for (const Component& part : component.list("processors")) add(part, max_id);
  } else {
    component.unsupported(cat("has type ", type));
  }
}

void PostProcessor::read_template(const Component& component, int64_t max_id) {
  component.allow_only({"type", "single", "pair", "special_tokens"});  // pair: of two texts, which we never encode
  has_template_ = true;
  const Component tokens = component.child("special_tokens");
  for (const Component& piece : component.list("single")) {
    piece.allow_only({"Sequence", "SpecialToken"});
    const bool text = piece.has("Sequence");
    if (text == piece.has("SpecialToken")) piece.malformed("is neither a Sequence nor a SpecialToken");
    const Component inside = piece.child(text ? "Sequence" : "SpecialToken");
    inside.allow_only({"id", "type_id"});
    const std::string name = inside.text("id");
    if (text && name != "A") inside.malformed(cat("has id \"", name, "\": a single text is \"A\""));
    if (!text && !tokens.has(name)) inside.malformed(cat("has id \"", name, "\", which special_tokens does not list"));
    pieces_.push_back({.text = text, .ids = text ? std::vector<int32_t>() : ids_of(tokens.child(name), max_id)});
  }
}

std::vector<int32_t> PostProcessor::apply(std::vector<int32_t> ids) const {
  if (!has_template_) return ids;
  std::vector<int32_t> out;
  out.reserve(ids.size() + pieces_.size());
  for (const Piece& piece : pieces_) {
    const std::vector<int32_t>& from = piece.text ? ids : piece.ids;
    out.insert(out.end(), from.begin(), from.end());
  }
  return out;
}

std::vector<int32_t> PostProcessor::ids() const {
  std::vector<int32_t> all;
  for (const Piece& piece : pieces_) all.insert(all.end(), piece.ids.begin(), piece.ids.end());
  return all;
}

}  // namespace lockstep::data
