#include "lockstep/checkpoint/safetensors_writer.h"

#include <tuple>

#include "lockstep/base/check.h"
#include "lockstep/base/hash.h"
#include "lockstep/base/json.h"
#include "lockstep/checkpoint/dtype.h"
#include "lockstep/checkpoint/io.h"

namespace lockstep::checkpoint {
namespace {

std::vector<const NamedTensor*> in_file_order(std::span<const NamedTensor> tensors) {
  std::vector<const NamedTensor*> order;
  for (const NamedTensor& tensor : tensors) order.push_back(&tensor);
  const auto key = [](const NamedTensor* t) { return std::pair(-dtype_of(t->tensor.scalar_type()).order, t->name); };
  std::sort(order.begin(), order.end(), [&](const auto* a, const auto* b) { return key(a) < key(b); });
  return order;
}

// The eight bytes of its size, then the JSON.
std::string header_bytes(const std::vector<const NamedTensor*>& order,
                         const std::map<std::string, std::string>& metadata) {
  OrderedJson json = OrderedJson::object();
  if (!metadata.empty()) json["__metadata__"] = metadata;
  size_t offset = 0;
  for (const NamedTensor* named : order) {
    LOCKSTEP_CHECK(!json.contains(named->name), "two tensors named ", named->name);
    const size_t end = offset + named->tensor.nbytes();
    json[named->name] = {{"dtype", dtype_of(named->tensor.scalar_type()).name},
                         {"shape", named->tensor.sizes().vec()},
                         {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = json.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t size = text.size();
  return std::string(reinterpret_cast<const char*>(&size), sizeof size) + text;
}

}  // namespace

WrittenFile write_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                              const std::map<std::string, std::string>& metadata, const Progress& progress) {
  const auto order = in_file_order(tensors);
  const std::string header = header_bytes(order, metadata);
  WrittenFile written{.header_hash = hash64(header)};
  OutputFile file(path, progress);
  file.write(header);
  for (const NamedTensor* named : order) {
    const at::Tensor data = named->tensor.cpu().contiguous();
    written.tensor_hashes[named->name] = hash64(data.const_data_ptr(), data.nbytes());
    file.write(data.const_data_ptr(), data.nbytes());
  }
  file.finish();
  written.size = file.size();
  return written;
}

}  // namespace lockstep::checkpoint
