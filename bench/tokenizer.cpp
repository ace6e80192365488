// Times the tokenizer on one thread: bench_tokenize TOKENIZER.json DOCUMENTS.json SECONDS
// DOCUMENTS.json is an array of texts. One line of JSON on standard output: bytes and tokens of a pass over all of them,
// and the seconds of each pass.
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

Json measure(const data::Tokenizer& tokenizer, const std::vector<std::string>& documents, double limit) {
  std::vector<double> passes;
  size_t bytes = 0;
  size_t tokens = 0;
  const auto begin = Clock::now();
  do {
    bytes = tokens = 0;
    const auto pass = Clock::now();
    for (const std::string& document : documents) {
      bytes += document.size();
      tokens += tokenizer.encode(document).size();
    }
    passes.push_back(seconds_since(pass));
  } while (seconds_since(begin) < limit);
  return {{"bytes", bytes}, {"tokens", tokens}, {"seconds", passes}};
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
