#include "lockstep/checkpoint/safetensors.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/checkpoint/dtype.h"
#include "lockstep/checkpoint/safetensors_writer.h"

namespace lockstep::checkpoint {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

fs::path fresh_file(const std::string& name) {
  const fs::path folder = fs::path(::testing::TempDir()) / "lockstep-safetensors";
  fs::create_directories(folder);
  fs::remove(folder / name);
  return folder / name;
}

std::string file_bytes(const std::string& header, const std::string& data) {
  const uint64_t size = header.size();
  return std::string(reinterpret_cast<const char*>(&size), sizeof size) + header + data;
}

// The message of the error that opening a file of these bytes gives; "" if it opens.
std::string refusal(const std::string& bytes) {
  const fs::path path = fresh_file("bad.safetensors");
  write_file(path, bytes);
  try {
    const SafetensorsFile file(path);
    return "";
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr(path.string()));
    return error.message().what;
  }
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

// What the reference writer gives: {"b": 2 x 3 fp32, "a": 3 bf16, "z": a 64-bit scalar}, metadata format = pt.
TEST(Safetensors, WritesTheReferenceLayout) {
  const fs::path path = fresh_file("layout.safetensors");
  const std::vector<NamedTensor> tensors = {{"a", at::arange(3).to(at::kBFloat16)},
                                            {"b", at::arange(6).to(at::kFloat).reshape({2, 3})},
                                            {"z", at::zeros({}, at::TensorOptions().dtype(at::kLong))}};
  const WrittenFile written = write_safetensors(path, tensors, {{"format", "pt"}});
  const std::string bytes = read_file(path);
  const std::string header = bytes.substr(8, bytes.size() - 8 - 38);
  EXPECT_EQ(
      header.substr(0, header.find_last_not_of(' ') + 1),
      R"({"__metadata__":{"format":"pt"},"z":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
      R"("b":{"dtype":"F32","shape":[2,3],"data_offsets":[8,32]},"a":{"dtype":"BF16","shape":[3],"data_offsets":[32,38]}})");
  EXPECT_EQ(header.size() % 8, 0u);
  EXPECT_EQ(written.size, bytes.size());
}

TEST(Safetensors, EveryDtypeComesBackAsItWas) {
  const fs::path path = fresh_file("dtypes.safetensors");
  std::vector<NamedTensor> tensors;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble, at::kLong, at::kInt, at::kShort,
                                    at::kByte, at::kChar, at::kBool, at::kFloat8_e4m3fn, at::kComplexFloat})
    tensors.push_back({at::toString(type), at::arange(12).to(type).reshape({3, 4})});
  tensors.push_back({"transposed", at::arange(12).to(at::kFloat).reshape({3, 4}).t()});
  tensors.push_back({"scalar", at::arange(8).to(at::kFloat)[7]});
  tensors.push_back({"empty", at::empty({0, 5})});
  const WrittenFile written = write_safetensors(path, tensors, {});
  const SafetensorsFile file(path);
  EXPECT_EQ(file.header_hash(), written.header_hash);
  EXPECT_EQ(file.header().entries.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor read = file.tensor(name);
    EXPECT_EQ(read.scalar_type(), tensor.scalar_type()) << name;
    EXPECT_EQ(read.sizes(), tensor.sizes()) << name;
    EXPECT_TRUE(at::equal(read.view(-1).view(at::kByte), tensor.contiguous().view(-1).view(at::kByte))) << name;
  }
  EXPECT_THROW(file.tensor("none"), DataError);
}

TEST(Safetensors, ReadsWhatTheFormatAllows) {
  // Any order of entries, unaligned data, trailing spaces, unknown fields, packed 4-bit elements.
  const std::string header = R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[1,5],"note":[1]},)" +
                             entry("a", "U8", "[1]", "[0,1]") + "," + entry("f", "F4", "[2,3]", "[5,8]") + "}   ";
  const fs::path path = fresh_file("allowed.safetensors");
  write_file(path, file_bytes(header, std::string("\x07\x00\x00\x80\x3f\x00\x00\x00", 8)));
  const SafetensorsFile file(path);
  EXPECT_EQ(file.tensor("b").item<float>(), 1.0f);
  EXPECT_EQ(file.tensor("a").item<int64_t>(), 7);
  EXPECT_THROW(file.tensor("f"), DataError);  // LibTorch has no such dtype
  EXPECT_EQ(refusal(file_bytes("{}", "")), "");
}

TEST(Safetensors, RefusesMalformedHeaders) {
  struct Case {
    std::string header, data, reason;
  };
  const std::string four = "1234", eight = "12345678";
  const std::string a4 = entry("a", "F32", "[1]", "[0,4]");
  const std::string long_name(1025, 'n');
  const std::vector<Case> cases = {
      {"", "", "begin with '{'"},
      {" {}", "", "begin with '{'"},
      {"[]", "", "begin with '{'"},
      {"{" + a4, four, "malformed JSON"},
      {"{" + a4 + "}x", four, "malformed JSON"},
      {"{" + a4 + "}" + std::string(1, '\0'), four, "zero byte"},
      {"{" + a4 + "," + a4 + "}", four, "duplicate"},
      {R"({"a":1})", four, "not an object"},
      {R"({"a":{"dtype":"F32","shape":[1]}})", four, "no 'data_offsets'"},
      {R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", four, "no 'shape'"},
      {R"({"a":{"shape":[1],"data_offsets":[0,4]}})", four, "no 'dtype'"},
      {R"({"a":{"dtype":5,"shape":[1],"data_offsets":[0,4]}})", four, "dtype is not"},
      {"{" + entry("a", "F31", "[1]", "[0,4]") + "}", four, "unknown dtype 'F31'"},
      {"{" + entry("a", "F32", "1", "[0,4]") + "}", four, "shape is not a list"},
      {"{" + entry("a", "F32", "[-1]", "[0,4]") + "}", four, "shape holds -1"},
      {"{" + entry("a", "F32", "[1.0]", "[0,4]") + "}", four, "shape holds 1.0"},
      {"{" + entry("a", "F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") + "}", four, "more than 8 dimensions"},
      {"{" + entry("a", "F32", "[18446744073709551615]", "[0,4]") + "}", four, "not a size"},
      {"{" + entry("a", "F32", "[4294967296,4294967296]", "[0,4]") + "}", four, "overflows"},
      {"{" + entry("a", "F32", "[1]", "[0]") + "}", four, "two non-negative"},
      {"{" + entry("a", "F32", "[1]", "[-4,0]") + "}", four, "two non-negative"},
      {"{" + entry("a", "F32", "[1]", "[4,0]") + "}", four, "need 4 bytes"},
      {"{" + entry("a", "F32", "[2]", "[0,4]") + "}", four, "need 8 bytes"},
      {"{" + entry("a", "F4", "[1]", "[0,1]") + "}", "1", "whole number of bytes"},
      {"{" + entry("a", "F32", "[1]", "[4,8]") + "}", eight, "hole"},
      {"{" + a4 + "," + entry("b", "F32", "[1]", "[0,4]") + "}", four, "inside"},
      {"{" + a4 + "," + entry("b", "U8", "[2]", "[3,5]") + "}", "12345", "inside"},
      {"{" + a4 + "}", eight, "the file at 8"},
      {"{" + entry("a", "F32", "[2]", "[0,8]") + "}", four, "the file at 4"},
      {R"({"__metadata__":{"a":1}})", "", "not a string"},
      {R"({"__metadata__":[]})", "", "not an object"},
      {"{" + entry(long_name, "F32", "[1]", "[0,4]") + "}", four, "name of 1025"},
      {R"({"a)"
       "\xff"
       R"(":{}})",
       "", "malformed JSON"},
      {"{\"a\":" + std::string(100000, '[') + "}", "", "'a': is not an object"},
      {R"({"a":{"note":)" + std::string(100000, '[') + "}}", "", "nested deeper"},
      {R"({"a":{"note":)" + std::string(65, '[') + std::string(65, ']') + "}}", "", "nested deeper"},
      {"\xef\xbb\xbf{" + a4 + "}", four, "begin with '{'"},
      {"{" + a4 + ",}", four, "malformed JSON"},
      {"{" + a4 + "}{}", four, "malformed JSON"},
      {"{/**/" + a4 + "}", four, "malformed JSON"},
      {"{'a':1}", "", "malformed JSON"},
      {"{\"a\n\":{}}", "", "malformed JSON"},
      {R"({"\ud800":{}})", "", "malformed JSON"},
      {"{" + entry("a", "F32", "[01]", "[0,4]") + "}", four, "malformed JSON"},
      {"{" + entry("a", "F32", "[NaN]", "[0,4]") + "}", four, "malformed JSON"},
      {R"({"a":null})", "", "'a': is not an object"},
      {R"({"a":[]})", "", "'a': is not an object"},
      {R"({"a":"F32"})", "", "'a': is not an object"},
      {R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", four, "'a': duplicate key \"dtype\""},
      {R"({"a":{"dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4]}})", four, "'a': duplicate key \"shape\""},
      {R"({"a":{"x":1,"x":2,"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", four, "'a': duplicate key \"x\""},
      {R"({"a":{"dtype":{},"shape":[1],"data_offsets":[0,4]}})", four, "dtype is not a string"},
      {R"({"a":{"dtype":"F32","shape":{},"data_offsets":[0,4]}})", four, "shape is not a list"},
      {R"({"a":{"dtype":"F32","shape":null,"data_offsets":[0,4]}})", four, "shape is not a list"},
      {"{" + entry("a", "f32", "[1]", "[0,4]") + "}", four, "unknown dtype 'f32'"},
      {"{" + entry("a", "", "[1]", "[0,4]") + "}", four, "unknown dtype ''"},
      {"{" + entry("a", "F32", "[[1]]", "[0,4]") + "}", four, "shape holds a list"},
      {"{" + entry("a", "F32", "[true]", "[0,4]") + "}", four, "shape holds true"},
      {"{" + entry("a", "F32", "[\"1\"]", "[0,4]") + "}", four, "shape holds \"1\""},
      {"{" + entry("a", "F32", "[1e0]", "[0,4]") + "}", four, "shape holds 1e0"},
      {"{" + entry("a", "F32", "[-0]", "[0,4]") + "}", four, "shape holds 0"},
      {"{" + entry("a", "F32", "[99999999999999999999]", "[0,4]") + "}", four, "not a size"},
      {"{" + entry("a", "F32", "[9223372036854775808]", "[0,4]") + "}", four, "not a size"},
      {"{" + entry("a", "F64", "[2305843009213693952]", "[0,0]") + "}", "", "overflows"},
      {"{" + entry("a", "F32", "[1]", "[0,4,8]") + "}", four, "two non-negative"},
      {"{" + entry("a", "F32", "[1]", "[]") + "}", four, "two non-negative"},
      {"{" + entry("a", "F32", "[1]", "{}") + "}", four, "two non-negative"},
      {"{" + entry("a", "F32", "[1]", "[0,\"4\"]") + "}", four, "two non-negative"},
      {"{" + entry("a", "F32", "[1]", "[0.0,4]") + "}", four, "two non-negative"},
      {"{" + entry("a", "F32", "[1]", "[[0],[4]]") + "}", four, "two non-negative"},
      {"{" + entry("a", "F32", "[1]", "[0,18446744073709551616]") + "}", four, "two non-negative"},
      {"{" + entry("a", "F32", "[1]", "[18446744073709551612,18446744073709551615]") + "}", four, "need 4 bytes"},
      {"{" + entry("a", "U8", "[0]", "[18446744073709551615,18446744073709551615]") + "}", "", "hole"},
      {"{" + entry("a", "F6_E2M3", "[3]", "[0,2]") + "}", "12", "whole number of bytes"},
      {"{" + a4 + "," + entry("e", "F32", "[0]", "[2,2]") + "}", four, "inside"},
      {"{" + a4 + "," + entry("b", "F32", "[1]", "[5,9]") + "}", "123456789", "hole"},
      {"{}", "1", "the file at 1"},
      {R"({"__metadata__":null})", "", "__metadata__ is not an object"},
      {R"({"__metadata__":"a"})", "", "__metadata__ is not an object"},
      {R"({"__metadata__":{"a":{}}})", "", "__metadata__ 'a' is not a string"},
      {R"({"__metadata__":{"a":null}})", "", "__metadata__ 'a' is not a string"},
      {R"({"__metadata__":{"a":["b"]}})", "", "__metadata__ 'a' is not a string"},
      {R"({"__metadata__":{"a":"1","a":"1"}})", "", "duplicate key \"a\""},
      {R"({"__metadata__":{},"__metadata__":{}})", "", "duplicate key \"__metadata__\""},
  };
  for (const Case& bad : cases)
    EXPECT_THAT(refusal(file_bytes(bad.header, bad.data)), HasSubstr(bad.reason)) << bad.header;
}

TEST(Safetensors, RefusesBadHeaderSizesAndCutFiles) {
  EXPECT_THAT(refusal(""), HasSubstr("only 0 bytes"));
  EXPECT_THAT(refusal("1234567"), HasSubstr("only 7 bytes"));
  EXPECT_THAT(refusal(std::string("\x01\xe1\xf5\x05\0\0\0\0{}", 10)), HasSubstr("100000001 bytes, at most"));
  EXPECT_THAT(refusal(std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10)), HasSubstr("at most"));
  EXPECT_THAT(refusal(std::string("\x03\0\0\0\0\0\0\0{}", 10)), HasSubstr("in a file of 10"));
  const std::string good = file_bytes("{" + entry("a", "F32", "[2]", "[0,8]") + "}", "12345678");
  ASSERT_EQ(refusal(good), "");
  for (size_t size = 0; size < good.size(); ++size) EXPECT_NE(refusal(good.substr(0, size)), "") << size;
}

TEST(Safetensors, OpensRegularFilesOnly) {
  const fs::path path = fresh_file("real.safetensors"), link = fresh_file("link.safetensors");
  write_file(path, file_bytes("{}", ""));
  fs::create_symlink(path, link);
  EXPECT_NO_THROW(SafetensorsFile{path});
  EXPECT_THROW(SafetensorsFile{link}, DataError);
  EXPECT_THROW(SafetensorsFile{path.parent_path()}, DataError);
  EXPECT_THROW(SafetensorsFile{path.parent_path() / "none.safetensors"}, DataError);
}

}  // namespace
}  // namespace lockstep::checkpoint
