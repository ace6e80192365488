// Real text for trying things out: the six novels of Jane Austen and the King James Bible, both public domain, out of
// the Debian packages r-cran-janeaustenr, bible-kjv and bible-kjv-text (scripts/demo_corpus.sh fetches them).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data {

struct DemoText {
  std::string name;  // "persuasion"
  std::string text;
  bool held_out = false;  // for validation
};

// The novels of the package's Rdata.rdb: six records, each a big-endian u32 length and a zlib stream that holds an R
// vector of strings, the lines, in R's XDR form. *Persuasion* is held out. DataError LS1245 naming what does not fit.
std::vector<DemoText> decode_austen(std::string_view rdb);

// The Bible as the program `bible` prints it, cut before Revelation, which is held out. DataError LS1245.
std::vector<DemoText> split_bible(std::string text);

struct DemoCorpus {
  std::vector<std::filesystem::path> train, validation;
  int64_t train_bytes = 0, validation_bytes = 0;
};

// Reads Rdata.rdb and bible.txt in `source_folder`, checks the totals of both (4,025,029 and 4,298,239 bytes) and
// writes one text file each into out_folder/train and out_folder/validation.
DemoCorpus write_demo_corpus(const std::filesystem::path& source_folder, const std::filesystem::path& out_folder);

}  // namespace lockstep::data
