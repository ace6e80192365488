// What the `post_processor` of a tokenizer.json adds to the ids of a text: tokens before and behind it.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/data/tokenizer_json.h"

namespace lockstep::data {

// Supported: TemplateProcessing, ByteLevel (which moves offsets only) and a Sequence with at most one template.
class PostProcessor {
 public:
  PostProcessor() = default;  // adds nothing
  // DataError LS1211 naming a component that is not supported, LS1210 where one is malformed.
  PostProcessor(const Component& component, int64_t max_id);

  std::vector<int32_t> apply(std::vector<int32_t> ids) const;
  // Every id that a template may add.
  std::vector<int32_t> ids() const;

 private:
  struct Piece {
    bool text = false;  // the ids of the text, else those below
    std::vector<int32_t> ids;
  };
  void add(const Component& component, int64_t max_id);
  void read_template(const Component& component, int64_t max_id);

  std::vector<Piece> pieces_;  // none = no template
  bool has_template_ = false;
};

}  // namespace lockstep::data
