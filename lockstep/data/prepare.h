// Text into token files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/data/bpe_tokenizer.h"

namespace lockstep::data {

// Calls on_document(text) for each document of the file, in order. A .jsonl file has one JSON object per line, with the
// text under "text"; any other file is one document. Either may be compressed with gzip (.gz).
// DataError LS1230 with file and line for a line that has no text, LS1231 for a damaged .gz, LS1203 for no file.
void for_each_document(const std::filesystem::path& file, const std::function<void(std::string_view)>& on_document);

struct PrepareOptions {
  bool append_eod = true;  // <|endoftext|> behind each document
  std::function<void(const std::filesystem::path& file, int64_t bytes)>
      progress{};  // after each document; may be empty
};

struct PrepareCounts {
  int64_t documents = 0;
  int64_t tokens = 0;
  int64_t text_bytes = 0;
  int64_t repaired_documents = 0;  // held malformed UTF-8, read as U+FFFD
};

// Writes PREFIX.bin and PREFIX.idx (token_file.h) from the documents of the files; empty ones are left out.
// DataError LS1232 where the files hold no text, or LS1233 where the tokenizer has no <|endoftext|> to append.
PrepareCounts prepare(const std::vector<std::filesystem::path>& files, const Tokenizer& tokenizer,
                      const std::filesystem::path& prefix, const PrepareOptions& options = {});

}  // namespace lockstep::data
