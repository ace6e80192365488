// How long a matrix product takes on a device: from a table where somebody has measured it there, else a roofline with what keeps large
// products from the peak (tiles that do not fill the last wave of processors, and little depth).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>

#include "lockstep/base/json.h"
#include "lockstep/config/run_config.h"
#include "lockstep/plan/cluster/cluster.h"
#include "lockstep/plan/time/stack.h"

namespace lockstep::plan {

// [m, k] times [k, n], `count` times in one launch: grouped products of experts, heads of attention.
struct ProductShape {
  int64_t m = 0, n = 0, k = 0;
  int64_t count = 1;
  double flops() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) * static_cast<double>(count); }
};

enum class ProductType { kFp32, kBf16, kFp8 };
std::string_view product_type_name(ProductType type);  // "bf16"
ProductType product_type(config::Precision precision);
double element_bytes(ProductType type);

// Seconds that were measured, for exact shapes.
struct ProductTable {
  // A launch of `count` products; nothing where it was not measured on that device.
  std::optional<double> find(std::string_view device, const ProductShape& shape, ProductType type) const;
  void add(std::string_view device, const ProductShape& shape, ProductType type, double seconds);

  // {"products": [{"device": "H100-SXM5-80GB", "m": 4096, "n": 12288, "k": 4096, "count": 1, "dtype": "bf16", "seconds": 6.1e-4}, ...]}, of
  // which count may be left out; other keys are not read. A device by any of its names (device_kind), or one that nobody knows here.
  // DataError LS1262 names the row and what is wrong with it.
  static ProductTable parse(const Json& json, std::string_view origin);

  using Key = std::tuple<std::string, int64_t, int64_t, int64_t, int64_t, ProductType>;
  std::map<Key, double, std::less<>> seconds{};
};

// Of one device under one stack, which outlive it, and so does `table`.
class ProductSeconds {
 public:
  // `speed`: share of its full speed at which the device runs.
  ProductSeconds(const DeviceKind& device, const Stack& stack, const ProductTable* table = nullptr, double speed = 1);

  // max(2 m n k / (peak x cap x w x k / (k + depth)), bytes / (memory bandwidth x share)) + launch; w = sqrt(fill), fill = the share of the
  // 128 x 256 tiles of all waves that are there. `cast`: elements that are made FP8 for it, which takes memory traffic of its own.
  double of(const ProductShape& shape, ProductType type, double cast = 0) const;

  double peak(ProductType type) const;  // FLOP/s, of the data sheet; ConfigError LS1147 where the device has no such products
  double memory(double bytes) const;    // seconds

 private:
  double fill(const ProductShape& shape) const;

  const DeviceKind& device_;
  const Stack& stack_;
  const ProductTable* table_;
  const double speed_;
};

}  // namespace lockstep::plan
