#include "lockstep/checkpoint/safetensors_writer.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/base/hash.h"
#include "lockstep/base/json.h"
#include "lockstep/checkpoint/box.h"
#include "lockstep/checkpoint/dtype.h"
#include "lockstep/checkpoint/io.h"

namespace lockstep::checkpoint {
namespace {

std::vector<const PlannedTensor*> in_file_order(std::span<const PlannedTensor> tensors) {
  std::vector<const PlannedTensor*> order;
  for (const PlannedTensor& tensor : tensors) order.push_back(&tensor);
  const auto key = [](const PlannedTensor* t) { return std::pair(-dtype_of(t->dtype).order, t->name); };
  std::sort(order.begin(), order.end(), [&](const auto* a, const auto* b) { return key(a) < key(b); });
  return order;
}

// The eight bytes of its size, then the JSON.
std::string header_bytes(const std::vector<const PlannedTensor*>& order,
                         const std::map<std::string, std::string>& metadata) {
  OrderedJson json = OrderedJson::object();
  if (!metadata.empty()) json["__metadata__"] = metadata;
  std::set<std::string_view> names;
  int64_t offset = 0;
  for (const PlannedTensor* planned : order) {
    LOCKSTEP_CHECK(names.insert(planned->name).second, "two tensors named ", planned->name);
    const Dtype dtype = dtype_of(planned->dtype);
    const int64_t end = offset + volume(planned->shape) * dtype.bits / 8;
    // An ordered object looks through all its keys for each new one: written to its end, where it is known to be new.
    json.get_ref<OrderedJson::object_t&>().emplace_back(
        planned->name, OrderedJson{{"dtype", dtype.name}, {"shape", planned->shape}, {"data_offsets", {offset, end}}});
    offset = end;
  }
  std::string text = json.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t size = text.size();
  return std::string(reinterpret_cast<const char*>(&size), sizeof size) + text;
}

}  // namespace

WrittenFile write_safetensors(const std::filesystem::path& path, std::span<const PlannedTensor> tensors,
                              const std::function<void(const PlannedTensor&, const ByteSink&)>& make,
                              const std::map<std::string, std::string>& metadata, const Progress& progress) {
  const auto order = in_file_order(tensors);
  const std::string header = header_bytes(order, metadata);
  WrittenFile written{.header_hash = hash64(header)};
  OutputFile file(path, progress);
  file.write(header);
  for (const PlannedTensor* planned : order) {
    const uint64_t begin = file.size();
    make(*planned, [&](const void* data, size_t size) { file.write(data, size); });
    LOCKSTEP_CHECK_EQ(static_cast<int64_t>(file.size() - begin),
                      volume(planned->shape) * dtype_of(planned->dtype).bits / 8);
  }
  file.finish();
  written.size = file.size();
  return written;
}

WrittenFile write_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                              const std::map<std::string, std::string>& metadata, const Progress& progress) {
  std::vector<PlannedTensor> planned;
  std::map<std::string, at::Tensor> values;
  for (const auto& [name, tensor] : tensors) {
    planned.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
    values[name] = tensor;
  }
  std::map<std::string, uint64_t> hashes;
  const auto make = [&](const PlannedTensor& tensor, const ByteSink& take) {
    const at::Tensor data = values.at(tensor.name).cpu().contiguous();
    hashes[tensor.name] = hash64(data.const_data_ptr(), data.nbytes());
    take(data.const_data_ptr(), data.nbytes());
  };
  WrittenFile written = write_safetensors(path, planned, make, metadata, progress);
  written.tensor_hashes = std::move(hashes);
  return written;
}

}  // namespace lockstep::checkpoint
