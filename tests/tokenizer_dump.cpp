// What Lockstep's tokenizer does, for comparison with Hugging Face `tokenizers`: tokenizer_dump JOBS.json
// JOBS.json is a list of {"tokenizer": path, "texts": [...], "ids": [[...]], "special": bool}. On standard output the
// list of {"ids": of the texts, "texts": of the ids, "streamed": the same by StreamDecoder} or {"error": message}.
// "special" adds special tokens to ids, and leaves them out of texts.
#include <cstdio>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/data/bpe_tokenizer.h"

namespace lockstep {
namespace {

std::string streamed(const data::Tokenizer& tokenizer, const std::vector<int32_t>& ids, data::DecodeOptions options) {
  data::StreamDecoder stream(tokenizer, options);
  std::string text;
  for (const int32_t id : ids) text += stream.push(id);
  return text + stream.finish();
}

Json result_of(const Json& job) {
  const auto tokenizer = data::Tokenizer::load(job.at("tokenizer").get<std::string>());
  const bool special = job.at("special").get<bool>();
  Json result = {{"ids", Json::array()}, {"texts", Json::array()}, {"streamed", Json::array()}};
  for (const Json& text : job.at("texts"))
    result["ids"].push_back(tokenizer.encode(text.get<std::string>(), {.add_special_tokens = special}));
  for (const Json& list : job.at("ids")) {
    const auto ids = list.get<std::vector<int32_t>>();
    result["texts"].push_back(tokenizer.decode(ids, {.skip_special_tokens = special}));
    result["streamed"].push_back(streamed(tokenizer, ids, {.skip_special_tokens = special}));
  }
  return result;
}

}  // namespace
}  // namespace lockstep

int main(int count, char** values) {
  using namespace lockstep;
  if (count != 2) {
    std::fputs("tokenizer_dump JOBS.json\n", stderr);
    return 2;
  }
  try {
    Json results = Json::array();
    for (const Json& job : read_json(values[1])) {
      try {
        results.push_back(result_of(job));
      } catch (const Error& error) {
        results.push_back({{"error", error.what()}});
      }
    }
    std::puts(results.dump().c_str());
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.exit_code());
  }
}
