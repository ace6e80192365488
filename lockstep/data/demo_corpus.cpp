#include "lockstep/data/demo_corpus.h"

#include <zlib.h>

#include <array>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

constexpr std::array kNovels = {"emma",       "mansfield-park",      "northanger-abbey",
                                "persuasion", "pride-and-prejudice", "sense-and-sensibility"};
constexpr std::string_view kHeldOutNovel = "persuasion";
constexpr std::string_view kRevelation = "\nRevelation 1\n";
constexpr size_t kAustenBytes = 4025029, kBibleBytes = 4298239;
constexpr uint32_t kLargestRecord = 16 << 20;

// Type codes of R's serialization, in the low byte of an item's flags.
constexpr int32_t kRString = 9, kRStringVector = 16;

[[noreturn]] void refuse(const std::string& what) {
  throw DataError({.code = "LS1245",
                   .what = what,
                   .way_out = "delete the cache folder and run scripts/demo_corpus.sh again; tried with "
                              "r-cran-janeaustenr 1.0.0 and bible-kjv 4.38"});
}

// Big-endian data, taken from the front.
class BigEndian {
 public:
  explicit BigEndian(std::string_view bytes) : bytes_(bytes) {}

  std::string_view take(size_t count) {
    if (count > bytes_.size()) refuse(cat("Rdata.rdb: ends ", count - bytes_.size(), " bytes too early"));
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }
  int32_t take_int() {
    uint32_t value = 0;
    for (const char byte : take(4)) value = value << 8 | static_cast<uint8_t>(byte);
    return static_cast<int32_t>(value);
  }
  std::string_view rest() const { return bytes_; }
  bool empty() const { return bytes_.empty(); }

 private:
  std::string_view bytes_;
};

// The record at the front of `source`, decompressed.
std::string take_record(BigEndian& source) {
  const auto size = static_cast<uint32_t>(source.take_int());
  if (size > kLargestRecord) refuse(cat("Rdata.rdb: a record claims ", size, " bytes"));
  std::string plain(size, '\0');
  z_stream stream{};
  if (::inflateInit(&stream) != Z_OK) refuse("Rdata.rdb: zlib does not start");
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(source.rest().data()));
  stream.avail_in = static_cast<uInt>(source.rest().size());
  stream.next_out = reinterpret_cast<Bytef*>(plain.data());
  stream.avail_out = size;
  const int code = ::inflate(&stream, Z_FINISH);
  const size_t used = stream.total_in, made = stream.total_out;
  ::inflateEnd(&stream);
  if (code != Z_STREAM_END || made != size)
    refuse(cat("Rdata.rdb: a record of ", size, " bytes decompresses to ", made, " (zlib code ", code, ")"));
  source.take(used);
  return plain;
}

// The lines of a serialized character vector, each ended by a newline.
std::string lines_of(std::string_view serialized) {
  BigEndian data(serialized);
  if (data.take(2) != "X\n") refuse("Rdata.rdb: a record is not in R's XDR form");
  if (const int32_t version = data.take_int(); version != 3) refuse(cat("Rdata.rdb: serialization version ", version));
  data.take_int();  // version of the writer
  data.take_int();  // least version of a reader
  const std::string_view encoding = data.take(static_cast<uint32_t>(data.take_int()));
  if (encoding != "UTF-8") refuse(cat("Rdata.rdb: encoding ", encoding));
  if ((data.take_int() & 0xFF) != kRStringVector) refuse("Rdata.rdb: a record is not a vector of strings");
  const int32_t count = data.take_int();
  std::string text;
  for (int32_t line = 0; line < count; ++line) {
    if ((data.take_int() & 0xFF) != kRString) refuse(cat("Rdata.rdb: line ", line, " is not a string"));
    const int32_t size = data.take_int();
    if (size < 0) refuse(cat("Rdata.rdb: line ", line, " is missing (NA)"));
    text += data.take(static_cast<size_t>(size));
    text += '\n';
  }
  if (!data.empty()) refuse(cat("Rdata.rdb: ", data.rest().size(), " bytes behind the last line of a record"));
  return text;
}

void require_total(const std::vector<DemoText>& texts, size_t expected, std::string_view what) {
  size_t total = 0;
  for (const DemoText& text : texts) total += text.text.size();
  if (total != expected) refuse(cat(what, " has ", total, " bytes, expected ", expected));
}

}  // namespace

std::vector<DemoText> decode_austen(std::string_view rdb) {
  BigEndian source(rdb);
  std::vector<DemoText> novels;
  for (const std::string_view name : kNovels)
    novels.push_back(
        {.name = std::string(name), .text = lines_of(take_record(source)), .held_out = name == kHeldOutNovel});
  if (!source.empty()) refuse(cat("Rdata.rdb: ", source.rest().size(), " bytes behind the sixth record"));
  return novels;
}

std::vector<DemoText> split_bible(std::string text) {
  const size_t heading = text.find(kRevelation);
  if (heading == std::string::npos) refuse("the Bible's text has no heading \"Revelation 1\"");
  const size_t cut = heading + 1;
  std::string revelation = text.substr(cut);
  text.resize(cut);
  return {{.name = "bible", .text = std::move(text)},
          {.name = "revelation", .text = std::move(revelation), .held_out = true}};
}

DemoCorpus write_demo_corpus(const fs::path& source_folder, const fs::path& out_folder) {
  std::vector<DemoText> texts = decode_austen(read_file(source_folder / "Rdata.rdb"));
  require_total(texts, kAustenBytes, "the text of the six novels");
  std::vector<DemoText> bible = split_bible(read_file(source_folder / "bible.txt"));
  require_total(bible, kBibleBytes, "the text of the Bible");
  std::move(bible.begin(), bible.end(), std::back_inserter(texts));

  DemoCorpus corpus;
  for (const DemoText& text : texts) {
    const fs::path folder = out_folder / (text.held_out ? "validation" : "train");
    std::error_code ignored;
    fs::create_directories(folder, ignored);  // write_file reports the failure
    const fs::path file = folder / (text.name + ".txt");
    write_file(file, text.text);
    (text.held_out ? corpus.validation : corpus.train).push_back(file);
    (text.held_out ? corpus.validation_bytes : corpus.train_bytes) += static_cast<int64_t>(text.text.size());
  }
  return corpus;
}

}  // namespace lockstep::data
