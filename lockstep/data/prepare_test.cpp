#include "lockstep/data/prepare.h"

#include <gmock/gmock.h>
#include <zlib.h>

#include <array>

#include "lockstep/base/text.h"
#include "lockstep/data/inspect.h"
#include "lockstep/data/test_files.h"
#include "lockstep/data/token_file.h"

namespace lockstep::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
namespace fs = std::filesystem;

const Tokenizer& tokenizer() {
  static const Tokenizer made = Tokenizer::parse(trained_json(), "trained");
  return made;
}

void write_gz(const fs::path& path, const std::string& content) {
  const gzFile file = ::gzopen(path.c_str(), "wb");
  ::gzwrite(file, content.data(), static_cast<unsigned>(content.size()));
  ::gzclose(file);
}

std::vector<std::string> documents_of(const fs::path& prefix) {
  const TokenFile file(prefix);
  std::vector<std::string> texts;
  int64_t at = 0;
  for (const int32_t length : file.index().lengths) {
    std::vector<int64_t> tokens(static_cast<size_t>(length));
    file.read(at, tokens);
    at += length;
    texts.push_back(tokenizer().decode(std::vector<int32_t>(tokens.begin(), tokens.end())));
  }
  return texts;
}

TEST(Prepare, TextFilesAndLinesOfJson) {
  const fs::path folder = fresh_folder("prepare");
  write_file(folder / "a.txt", "First document.\nSecond line.");
  write_file(
      folder / "b.jsonl",
      "{\"text\": \"one\\n\\u00e9\"}\n\n  {\"id\": 3, \"text\": \"two\"}\r\n{\"text\": \"\"}\n{\"text\": \"end\"}");
  const PrepareCounts counts = prepare({folder / "a.txt", folder / "b.jsonl"}, tokenizer(), folder / "out");
  EXPECT_EQ(counts.documents, 4);
  EXPECT_EQ(counts.tokens, TokenFile(folder / "out").num_tokens());
  EXPECT_EQ(counts.text_bytes, 28 + 6 + 3 + 3);
  EXPECT_EQ(counts.repaired_documents, 0);
  EXPECT_THAT(documents_of(folder / "out"),
              ElementsAre("First document.\nSecond line.<|endoftext|>", "one\n\u00e9<|endoftext|>", "two<|endoftext|>",
                          "end<|endoftext|>"));
  prepare({folder / "a.txt"}, tokenizer(), folder / "plain", {.append_eod = false});
  EXPECT_THAT(documents_of(folder / "plain"), ElementsAre("First document.\nSecond line."));
}

TEST(Prepare, CompressedFilesGiveTheSame) {
  const fs::path folder = fresh_folder("gz");
  std::string lines;
  for (int i = 0; i < 30000; ++i) lines += cat("{\"text\": \"document number ", i, "\"}\n");
  write_file(folder / "a.jsonl", lines);
  write_gz(folder / "b.jsonl.gz", lines);
  write_gz(folder / "c.txt.gz", excerpt());
  prepare({folder / "a.jsonl"}, tokenizer(), folder / "plain");
  EXPECT_EQ(prepare({folder / "b.jsonl.gz"}, tokenizer(), folder / "packed").documents, 30000);
  EXPECT_EQ(read_file(folder / "plain.bin"), read_file(folder / "packed.bin"));
  EXPECT_EQ(read_file(folder / "plain.idx"), read_file(folder / "packed.idx"));
  prepare({folder / "c.txt.gz"}, tokenizer(), folder / "text", {.append_eod = false});
  EXPECT_THAT(documents_of(folder / "text"), ElementsAre(excerpt()));
}

TEST(Prepare, RefusesWhatItCannotRead) {
  const fs::path folder = fresh_folder("refused");
  const auto refused = [&](const std::string& name, const std::string& content) {
    write_file(folder / name, content);
    const std::string message = refusal([&] { prepare({folder / name}, tokenizer(), folder / "out"); });
    EXPECT_FALSE(fs::exists(folder / "out.bin"));
    return message;
  };
  EXPECT_THAT(refused("a.jsonl", "{\"text\": \"x\"}\n{\"txt\": \"y\"}\n"),
              AllOf(StartsWith("LS1230"), HasSubstr("a.jsonl:2")));
  EXPECT_THAT(refused("b.jsonl", "{\"text\": 3}\n"), HasSubstr("b.jsonl:1"));
  EXPECT_THAT(refused("c.jsonl", "{\"text\": \"x\n"), AllOf(StartsWith("LS1205"), HasSubstr("c.jsonl:1")));
  EXPECT_THAT(refused("d.txt", ""), StartsWith("LS1232"));
  write_gz(folder / "whole.gz", excerpt());
  const std::string packed = read_file(folder / "whole.gz");
  EXPECT_THAT(refused("cut.txt.gz", packed.substr(0, packed.size() / 2)), StartsWith("LS1231"));
  std::string flipped = packed;
  flipped[packed.size() / 2] ^= 0x10;
  EXPECT_THAT(refused("flipped.txt.gz", flipped), StartsWith("LS1231"));
  EXPECT_THAT(refusal([&] { prepare({folder / "none.txt"}, tokenizer(), folder / "out"); }), StartsWith("LS1203"));
  for (const auto& entry : fs::directory_iterator(folder)) EXPECT_THAT(entry.path().string(), Not(HasSubstr("tmp-")));
}

TEST(Prepare, CountsRepairedDocumentsAndNeedsAnEndOfText) {
  const fs::path folder = fresh_folder("repaired");
  write_file(folder / "a.txt", "ok\xFF");
  EXPECT_EQ(prepare({folder / "a.txt"}, tokenizer(), folder / "out").repaired_documents, 1);
  BpeTrainer trainer({.vocab_size = 256, .special_tokens = {}});
  const Tokenizer bare = Tokenizer::parse(trainer.train().tokenizer_json(), "bare");
  EXPECT_THAT(refusal([&] { prepare({folder / "a.txt"}, bare, folder / "out"); }), StartsWith("LS1233"));
  EXPECT_EQ(prepare({folder / "a.txt"}, bare, folder / "out", {.append_eod = false}).tokens, 5);
}

TEST(Inspect, KnowsFilesByTheirContent) {
  const fs::path folder = fresh_folder("inspect");
  write_file(folder / "a.txt", "some text");
  write_file(folder / "tokenizer.json", trained_json());
  const PrepareCounts counts = prepare({folder / "a.txt"}, tokenizer(), folder / "data");
  for (const char* name : {"data", "data.bin", "data.idx"})
    EXPECT_THAT(inspect(folder / name),
                AllOf(HasSubstr("documents   1\n"), HasSubstr(cat("tokens      ", counts.tokens)), HasSubstr("uint16"),
                      HasSubstr("ids         0 to ")));
  EXPECT_THAT(inspect(folder / "tokenizer.json"), AllOf(HasSubstr("600 ids"), HasSubstr("<|endoftext|> = 0")));

  const auto llmc = [&](const std::array<int32_t, 4>& start, size_t body) {
    std::string bytes(1024, '\0');
    std::memcpy(bytes.data(), start.data(), sizeof start);
    write_file(folder / "llmc.bin", bytes + std::string(body, '\0'));
    return inspect(folder / "llmc.bin");
  };
  EXPECT_THAT(llmc({20240520, 1, 12, 0}, 24), HasSubstr("tokens      12, uint16"));
  EXPECT_THAT(llmc({20240801, 7, 12, 0}, 48), HasSubstr("tokens      12, uint32"));
  EXPECT_THAT(llmc({20240522, 1, 5, 300}, 0), HasSubstr("examples    5"));
  EXPECT_THAT(llmc({20240326, 3, 1024, 50257}, 0), AllOf(HasSubstr("float32"), HasSubstr("vocabulary 50257")));
  EXPECT_THAT(refusal([&] {
                llmc({20240520, 1, 12, 0}, 23);
              }),
              HasSubstr("12 tokens * 2 bytes + 1024 of header = 1048"));
  EXPECT_THAT(refusal([&] { inspect(folder / "a.txt"); }), StartsWith("LS1240"));
  EXPECT_THAT(refusal([&] { inspect(folder / "b.txt"); }), StartsWith("LS1203"));
}

}  // namespace
}  // namespace lockstep::data
