#include "lockstep/data/inspect.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <span>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/source.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/data/bpe_tokenizer.h"
#include "lockstep/data/token_file.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

constexpr size_t kHeaderNumbers = 256;  // every file of llm.c begins with so many int32

std::string row(std::string_view name, const std::string& value) {
  return cat("  ", pad_right(name, 12), value, "\n");
}

// "412k (412,345)" is more than a summary needs: small numbers exactly, large ones with three digits as well.
std::string count_text(int64_t count) {
  return count < 10000 ? cat(count) : cat(count, " (", format_count(static_cast<double>(count)), ")");
}

std::string inspect_tokens(const fs::path& prefix) {
  const TokenFile file(prefix);
  const TokenIndex& index = file.index();
  std::string text = cat(prefix.string(), ": token data (Megatron .bin/.idx)\n");
  text += row("documents", count_text(file.num_documents()));
  if (file.num_documents() != static_cast<int64_t>(index.lengths.size()))
    text += row("sequences", count_text(static_cast<int64_t>(index.lengths.size())));
  text += row("tokens", count_text(file.num_tokens()));
  const double bytes = static_cast<double>(file.num_tokens()) * static_cast<double>(size_of(index.type));
  text += row("type", cat(name_of(index.type), ", ", format_bytes(bytes)));
  if (file.num_tokens() == 0) return text;
  std::vector<int64_t> tokens(std::min<int64_t>(file.num_tokens(), 1 << 16));
  int64_t smallest = INT64_MAX, largest = INT64_MIN;
  for (int64_t at = 0; at < file.num_tokens(); at += static_cast<int64_t>(tokens.size())) {
    const auto count = std::min(file.num_tokens() - at, static_cast<int64_t>(tokens.size()));
    const auto part = std::span(tokens).first(static_cast<size_t>(count));
    file.read(at, part);
    const auto [low, high] = std::minmax_element(part.begin(), part.end());
    smallest = std::min(smallest, *low);
    largest = std::max(largest, *high);
  }
  text += row("ids", cat(smallest, " to ", largest));
  const auto [shortest, longest] = std::minmax_element(index.lengths.begin(), index.lengths.end());
  return text + row("lengths", cat(*shortest, " to ", *longest, " tokens per sequence"));
}

std::string inspect_tokenizer(const fs::path& path) {
  const Tokenizer tokenizer = Tokenizer::load(path);
  std::string text = cat(path.string(), ": tokenizer (", tokenizer.byte_level() ? "byte-level " : "", "BPE)\n");
  text += row("vocabulary", cat(tokenizer.vocab_size(), " ids"));
  const auto eos = tokenizer.eos_id();
  return text + row("end of text", eos ? cat(*tokenizer.token_of(*eos), " = ", *eos) : cat("no ", kEndOfText));
}

using Header = std::array<int32_t, kHeaderNumbers>;

std::string llmc_tokens(const Header& header, const fs::path& path, uint64_t token_size) {
  const uint64_t tokens = static_cast<uint32_t>(header[2]);
  const uint64_t expected = sizeof(Header) + tokens * token_size;
  if (expected != fs::file_size(path))
    throw DataError({.code = "LS1220",
                     .what = cat(path.string(), ": ", tokens, " tokens * ", token_size, " bytes + ", sizeof(Header),
                                 " of header = ", expected, ", but the file has ", fs::file_size(path))});
  return row("tokens", cat(count_text(header[2]), ", ", token_size == 2 ? "uint16" : "uint32"));
}

std::string llmc_model(const Header& header) {
  return row("type", header[1] == 3   ? "float32"
                     : header[1] == 5 ? "bfloat16"
                                      : cat("unknown version ", header[1])) +
         row("shape", cat(header[4], " layers, ", header[5], " heads, width ", header[6], ", vocabulary ", header[3],
                          " (padded to ", header[7], "), length ", header[2]));
}

// Nothing where the file does not begin as one of llm.c.
std::string inspect_llmc(const fs::path& path) {
  Header header{};
  std::ifstream stream(path, std::ios::binary);
  if (!stream.read(reinterpret_cast<char*>(header.data()), sizeof header)) return "";
  const std::string name = path.string();
  switch (header[0]) {
    case 20240520:
      return cat(name, ": tokens of llm.c\n", llmc_tokens(header, path, 2));
    case 20240801:
      return cat(name, ": tokens of llm.c (Llama 3)\n", llmc_tokens(header, path, 4));
    case 20240522:
      return cat(name, ": evaluation examples of llm.c\n", row("examples", cat(header[2])),
                 row("longest", cat(header[3], " bytes")));
    case 20240326:
      return cat(name, ": model of llm.c\n", llmc_model(header));
    case 20240527:
      return cat(name, ": training state of llm.c\n", row("process", cat(header[3], " of ", header[2])),
                 row("step", cat(header[10])));
    default:
      return "";
  }
}

bool is_token_pair(const fs::path& prefix) {
  std::error_code ignored;
  return fs::is_regular_file(idx_path(prefix), ignored) && fs::is_regular_file(bin_path(prefix), ignored);
}

}  // namespace

std::string inspect(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored) && is_token_pair(path)) return inspect_tokens(path);
  if (const fs::path tokenizer = tokenizer_file(path.string()); tokenizer != path) return inspect_tokenizer(tokenizer);
  require_file(path);
  const fs::path prefix = path.parent_path() / path.stem();
  if (path.extension() == ".idx" || (path.extension() == ".bin" && is_token_pair(prefix)))
    return inspect_tokens(prefix);
  if (path.extension() == ".json") return inspect_tokenizer(path);
  if (const std::string text = inspect_llmc(path); !text.empty()) return text;
  throw DataError({.code = "LS1240",
                   .what = cat(path.string(), ": not a data file that is known here"),
                   .way_out = "known: PREFIX.bin with PREFIX.idx, tokenizer.json, token and model files of llm.c"});
}

}  // namespace lockstep::data
