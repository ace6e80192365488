#include "lockstep/data/prepare.h"

#include <zlib.h>

#include <memory>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/data/token_file.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

constexpr size_t kBlock = 1 << 18;

// Reads a file in blocks, decompressed if it is a .gz.
class BlockReader {
 public:
  explicit BlockReader(const fs::path& path) : path_(path) {
    require_file(path);
    file_ = ::gzopen(path.c_str(), "rb");
    if (file_ == nullptr) throw DataError({.code = "LS1204", .what = cat("cannot read ", path.string())});
    ::gzbuffer(file_, kBlock);
  }
  ~BlockReader() { ::gzclose(file_); }
  BlockReader(const BlockReader&) = delete;
  BlockReader& operator=(const BlockReader&) = delete;

  // Appends the next block to `out`; false at the end.
  bool read(std::string& out) {
    const size_t before = out.size();
    out.resize(before + kBlock);
    const int got = ::gzread(file_, out.data() + before, kBlock);
    int code = Z_OK;
    const char* message = ::gzerror(file_, &code);
    // A stream that is cut short gives its bytes and then Z_BUF_ERROR.
    if (got < 0 || code == Z_BUF_ERROR)
      throw DataError({.code = "LS1231", .what = cat(path_.string(), ": damaged or cut short: ", message)});
    out.resize(before + static_cast<size_t>(got));
    return got > 0;
  }

 private:
  fs::path path_;
  gzFile file_ = nullptr;
};

std::string text_of_line(std::string_view line, const std::string& where) {
  const Json object = parse_json(line, where);
  if (!object.is_object() || !object.contains("text") || !object["text"].is_string())
    throw DataError({.code = "LS1230",
                     .what = "a line of a .jsonl file must be an object with a string \"text\"",
                     .where = where,
                     .way_out = "give plain text a name that does not end in .jsonl"});
  return object["text"].get<std::string>();
}

void for_each_line(const fs::path& path, const std::function<void(std::string_view, int64_t)>& on_line) {
  BlockReader reader(path);
  std::string held;
  int64_t number = 0;
  bool more = true;
  while (more) {
    more = reader.read(held);
    size_t begin = 0;
    for (size_t end; (end = held.find('\n', begin)) != std::string::npos; begin = end + 1)
      on_line(std::string_view(held).substr(begin, end - begin), ++number);
    held.erase(0, begin);
  }
  if (!held.empty()) on_line(held, ++number);
}

bool is_json_lines(fs::path path) {
  if (path.extension() == ".gz") path.replace_extension();
  return path.extension() == ".jsonl";
}

}  // namespace

void for_each_document(const fs::path& file, const std::function<void(std::string_view)>& on_document) {
  if (!is_json_lines(file)) {
    BlockReader reader(file);
    std::string text;
    while (reader.read(text)) {
    }
    return on_document(text);
  }
  for_each_line(file, [&](std::string_view line, int64_t number) {
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) return;
    on_document(text_of_line(line, cat(file.string(), ":", number)));
  });
}

PrepareCounts prepare(const std::vector<fs::path>& files, const Tokenizer& tokenizer, const fs::path& prefix,
                      const PrepareOptions& options) {
  if (options.append_eod && !tokenizer.eos_id())
    throw DataError({.code = "LS1233",
                     .what = cat("the tokenizer has no ", kEndOfText, " to put behind each document"),
                     .way_out = "use --no-append-eod, or a tokenizer of `lockstep data tokenizer`"});
  for (const fs::path& file : files) require_file(file);  // all, before the first is worked on
  TokenFileWriter writer(prefix, tokenizer.vocab_size());
  PrepareCounts counts;
  for (const fs::path& file : files) {
    for_each_document(file, [&](std::string_view text) {
      if (text.empty()) return;
      if (!is_valid_utf8(text)) ++counts.repaired_documents;
      std::vector<int32_t> ids = tokenizer.encode(text);
      if (options.append_eod) ids.push_back(*tokenizer.eos_id());
      writer.add_document(ids);
      counts.text_bytes += static_cast<int64_t>(text.size());
      if (options.progress) options.progress(file, counts.text_bytes);
    });
  }
  counts.documents = writer.num_documents();
  counts.tokens = writer.num_tokens();
  if (counts.documents == 0)
    throw DataError({.code = "LS1232",
                     .what = files.empty()
                                 ? "no files to prepare"
                                 : cat(files.front().string(), " and ", files.size() - 1, " more files hold no text")});
  writer.finish();
  return counts;
}

}  // namespace lockstep::data
