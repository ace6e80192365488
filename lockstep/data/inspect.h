// Says what a data file is, by its first bytes, and what it holds.
#pragma once

#include <filesystem>
#include <string>

namespace lockstep::data {

// A few lines of text about PREFIX, PREFIX.bin or PREFIX.idx (token_file.h), a tokenizer (base/source.h), or the token,
// evaluation, model and state files of llm.c. DataError LS1240 for a file that is none of them, and the errors of
// reading it.
std::string inspect(const std::filesystem::path& path);

}  // namespace lockstep::data
