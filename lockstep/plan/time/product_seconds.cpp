#include "lockstep/plan/time/product_seconds.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::plan {
namespace {

constexpr std::array<std::string_view, 3> kTypeNames = {"fp32", "bf16", "fp8"};
constexpr int64_t kTileRows = 128, kTileColumns = 256;  // of the largest kernels of cuBLAS and CUTLASS

int64_t divided_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

[[noreturn]] void refuse(std::string_view origin, size_t row, const std::string& what) {
  throw DataError({.code = "LS1262",
                   .what = cat("products[", row, "]: ", what),
                   .where = std::string(origin),
                   .way_out = R"(a row is {"device": "h100", "m": 4096, "n": 12288, "k": 4096, "dtype": "bf16", "seconds": 6.1e-4})"});
}

std::string known_name(const std::string& device) {
  try {
    return device_kind(device).name;
  } catch (const ConfigError&) {
    return device;  // of a cluster file of its own
  }
}

// The rows of one file.
class TableReader {
 public:
  explicit TableReader(std::string_view origin) : origin_(origin) {}

  void add(const Json& row) {
    if (!row.is_object()) refuse(origin_, index_, "no object");
    const ProductShape shape{.m = whole(row, "m"), .n = whole(row, "n"), .k = whole(row, "k"), .count = row.contains("count") ? whole(row, "count") : 1};
    const std::string word = text(row, "dtype");
    const auto* type = std::ranges::find(kTypeNames, word);
    if (type == kTypeNames.end()) refuse(origin_, index_, cat("dtype \"", word, "\" is none of fp32, bf16, fp8"));
    const Json seconds = row.value("seconds", Json());
    if (!seconds.is_number() || !(seconds.get<double>() > 0)) refuse(origin_, index_, "\"seconds\" is no number above 0");
    table_.add(known_name(text(row, "device")), shape, static_cast<ProductType>(type - kTypeNames.begin()), seconds.get<double>());
    ++index_;
  }
  ProductTable take() { return std::move(table_); }

 private:
  int64_t whole(const Json& row, const char* name) const {
    const Json value = row.value(name, Json());
    if (!value.is_number_integer() || value.get<int64_t>() < 1) refuse(origin_, index_, cat("\"", name, "\" is no whole number above 0"));
    return value.get<int64_t>();
  }
  std::string text(const Json& row, const char* name) const {
    const Json value = row.value(name, Json());
    if (!value.is_string()) refuse(origin_, index_, cat("\"", name, "\" is no text"));
    return value.get<std::string>();
  }

  std::string_view origin_;
  size_t index_ = 0;
  ProductTable table_;
};

}  // namespace

std::string_view product_type_name(ProductType type) { return kTypeNames.at(static_cast<size_t>(type)); }
ProductType product_type(config::Precision precision) { return precision == config::Precision::kBf16 ? ProductType::kBf16 : ProductType::kFp32; }
double element_bytes(ProductType type) { return type == ProductType::kFp32 ? 4 : type == ProductType::kBf16 ? 2 : 1; }

std::optional<double> ProductTable::find(std::string_view device, const ProductShape& shape, ProductType type) const {
  if (seconds.empty()) return std::nullopt;
  const auto found = seconds.find(Key(device, shape.m, shape.n, shape.k, shape.count, type));
  return found == seconds.end() ? std::nullopt : std::optional(found->second);
}

void ProductTable::add(std::string_view device, const ProductShape& shape, ProductType type, double measured) {
  seconds[Key(device, shape.m, shape.n, shape.k, shape.count, type)] = measured;
}

ProductTable ProductTable::parse(const Json& json, std::string_view origin) {
  const auto rows = json.is_object() ? json.find("products") : json.end();
  if (!json.is_object() || rows == json.end() || !rows->is_array())
    throw DataError({.code = "LS1262", .what = "no list \"products\"", .where = std::string(origin), .way_out = "a table of products is {\"products\": [...]}"});
  TableReader reader(origin);
  for (const Json& row : *rows) reader.add(row);
  return reader.take();
}

ProductSeconds::ProductSeconds(const DeviceKind& device, const Stack& stack, const ProductTable* table, double speed)
    : device_(device), stack_(stack), table_(table), speed_(speed) {}

double ProductSeconds::peak(ProductType type) const {
  const double flops = type == ProductType::kFp32 ? device_.flops_fp32 : type == ProductType::kBf16 ? device_.flops_bf16 : device_.flops_fp8;
  if (flops > 0) return flops;
  throw ConfigError({.code = "LS1147",
                     .what = cat(device_.name, " has no products in ", product_type_name(type)),
                     .way_out = type == ProductType::kFp8 ? "leave linears in the precision of the run"
                                                          : "take another train.precision, or say the FLOP/s of the device in the cluster file"});
}

double ProductSeconds::memory(double bytes) const { return bytes / (device_.memory_bandwidth * stack_.memory_share * speed_); }

double ProductSeconds::fill(const ProductShape& shape) const {
  if (device_.processors <= 0) return 1;
  const double tiles = static_cast<double>(divided_up(shape.m, kTileRows) * divided_up(shape.n, kTileColumns) * shape.count);
  const double waves = std::ceil(tiles / device_.processors);
  return static_cast<double>(shape.m) * static_cast<double>(shape.n) * static_cast<double>(shape.count) /
         (waves * device_.processors * static_cast<double>(kTileRows * kTileColumns));
}

double ProductSeconds::of(const ProductShape& shape, ProductType type, double cast) const {
  if (shape.m <= 0 || shape.n <= 0 || shape.k <= 0 || shape.count <= 0) return 0;
  const double casting = cast > 0 ? memory(stack_.cast_bytes * cast) : 0;
  if (table_)
    if (const std::optional<double> measured = table_->find(device_.name, shape, type)) return *measured / speed_ + casting;
  const bool fp8 = type == ProductType::kFp8;
  const double m = static_cast<double>(shape.m), n = static_cast<double>(shape.n), k = static_cast<double>(shape.k), count = static_cast<double>(shape.count);
  const double cap = fp8 ? stack_.fp8_cap : stack_.product_cap, depth = fp8 ? stack_.fp8_depth : stack_.product_depth;
  const double rate = peak(type) * cap * speed_ * std::sqrt(fill(shape)) * k / (k + depth);
  const double operand = element_bytes(type), result = std::max(operand, 2.0);
  const double bytes = count * (operand * (m * k + k * n) + result * m * n);
  return std::max(shape.flops() / rate, memory(bytes)) + casting + stack_.launch;
}

}  // namespace lockstep::plan
