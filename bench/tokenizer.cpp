// Times the tokenizer on one thread: bench_tokenize TOKENIZER.json DOCUMENTS.json SECONDS
// DOCUMENTS.json is an array of texts. One line of JSON on standard output: bytes and tokens of a pass over all of
// them, and the seconds of each pass of encoding and of decoding what was encoded.
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/data/bpe_tokenizer.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// Seconds of each pass over the documents, for about `limit` seconds.
template <typename Work>
std::vector<double> passes(size_t count, double limit, Work work) {
  std::vector<double> taken;
  const auto begin = Clock::now();
  do {
    const auto pass = Clock::now();
    for (size_t i = 0; i < count; ++i) work(i);
    taken.push_back(seconds_since(pass));
  } while (seconds_since(begin) < limit);
  return taken;
}

Json measure(const data::Tokenizer& tokenizer, const std::vector<std::string>& documents, double limit) {
  std::vector<std::vector<int32_t>> ids(documents.size());
  const std::vector<double> encode =
      passes(ids.size(), limit / 2, [&](size_t i) { ids[i] = tokenizer.encode(documents[i]); });
  size_t decoded = 0;
  const std::vector<double> decode =
      passes(ids.size(), limit / 2, [&](size_t i) { decoded += tokenizer.decode(ids[i]).size(); });
  size_t bytes = 0, tokens = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    bytes += documents[i].size();
    tokens += ids[i].size();
  }
  return {{"bytes", bytes},
          {"tokens", tokens},
          {"decoded", decoded / decode.size()},
          {"encode", encode},
          {"decode", decode}};
}

}  // namespace
}  // namespace lockstep

int main(int count, char** values) {
  using namespace lockstep;
  if (count != 4) {
    std::fputs("bench_tokenize TOKENIZER.json DOCUMENTS.json SECONDS\n", stderr);
    return 2;
  }
  try {
    const auto documents = read_json(values[2]).get<std::vector<std::string>>();
    const Json report = measure(data::Tokenizer::load(values[1]), documents, std::atof(values[3]));
    std::puts(report.dump().c_str());
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.exit_code());
  }
}
