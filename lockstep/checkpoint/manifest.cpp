#include "lockstep/checkpoint/manifest.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/hash.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/checkpoint/dtype.h"

namespace lockstep::checkpoint {
namespace {

constexpr int kVersion = 1;
// The text begins with this and 16 digits; they are the xxh3 of the text with zeros in their place.
constexpr std::string_view kFront = "{\n \"xxh3\": \"";
constexpr size_t kDigits = 16;

[[noreturn]] void refuse(std::string_view origin, const std::string& what) {
  throw CheckpointError({.code = "LS1302", .what = cat("damaged manifest: ", what), .where = std::string(origin)});
}

std::string self_hash(std::string text) {
  text.replace(kFront.size(), kDigits, kDigits, '0');
  return hash_text(hash64(text));
}

uint64_t hash_value(const Json& json) {
  const auto& text = json.get_ref<const std::string&>();
  uint64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (text.size() != kDigits || result.ptr != text.data() + text.size())
    throw DataError({.code = "LS1302", .what = cat("'", text, "' is no checksum")});
  return value;
}

bool is_component(std::string_view name) {
  if (name.empty() || name == "." || name == "..") return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  });
}

// A manifest must not be able to name a file outside its folder.
bool is_safe_path(std::string_view path) {
  for (const std::string_view folder : {"model/", "optim/"}) {
    if (path.starts_with(folder)) return is_component(path.substr(folder.size()));
  }
  return is_component(path);
}

ManifestTensor tensor_from(const Json& json) {
  ManifestTensor tensor{
      .dtype = json.at("dtype").get<std::string>(), .shape = json.at("shape").get<Sizes>(), .pieces = {}};
  for (const Json& piece : json.at("pieces")) {
    tensor.pieces.push_back({.file = piece.at("file").get<std::string>(),
                             .box = {piece.at("offset").get<Sizes>(), piece.at("shape").get<Sizes>()},
                             .hash = hash_value(piece.at("xxh3"))});
  }
  return tensor;
}

Manifest manifest_from(const Json& json, std::string_view origin) {
  if (json.at("version").get<int>() != kVersion)
    refuse(origin, cat("format version ", json.at("version").dump(), ", this program reads ", kVersion));
  Manifest manifest{.step = json.at("step").get<int64_t>(), .version = json.at("lockstep").get<std::string>()};
  for (const auto& [path, file] : json.at("files").items()) {
    if (!is_safe_path(path)) refuse(origin, cat("'", path, "' is no file of a checkpoint"));
    manifest.files[path] = {.size = file.at("size").get<uint64_t>(), .hash = hash_value(file.at("xxh3"))};
  }
  for (const auto& [name, tensor] : json.at("tensors").items()) {
    manifest.tensors[name] = tensor_from(tensor);
    if (!scalar_type(manifest.tensors[name].dtype)) refuse(origin, cat("tensor '", name, "' has an unknown dtype"));
    for (const Piece& piece : manifest.tensors[name].pieces) {
      if (!manifest.files.contains(piece.file)) refuse(origin, cat("tensor '", name, "' is in an unlisted file"));
    }
  }
  return manifest;
}

// Two pieces, in the order of the list, that have an element in common. Along dim 0 a piece is compared only with those
// that begin before it ends: many shards are many pieces.
std::optional<std::pair<const Piece*, const Piece*>> find_overlap(const std::vector<Piece>& pieces) {
  const auto begin = [](const Piece* piece) { return piece->box.offset.empty() ? 0 : piece->box.offset[0]; };
  std::vector<const Piece*> sorted;
  for (const Piece& piece : pieces) sorted.push_back(&piece);
  std::stable_sort(sorted.begin(), sorted.end(), [&](const auto* a, const auto* b) { return begin(a) < begin(b); });
  for (size_t i = 0; i < sorted.size(); ++i) {
    const Box& box = sorted[i]->box;
    const int64_t end = begin(sorted[i]) + (box.shape.empty() ? 1 : box.shape[0]);
    for (size_t j = i + 1; j < sorted.size() && begin(sorted[j]) < end; ++j)
      if (intersect(box, sorted[j]->box)) return std::minmax(sorted[i], sorted[j]);
  }
  return std::nullopt;
}

}  // namespace

void Manifest::merge(const Manifest& other) {
  files.insert(other.files.begin(), other.files.end());
  for (const auto& [name, theirs] : other.tensors) {
    const auto [place, is_new] = tensors.try_emplace(name, theirs);
    if (is_new) continue;
    ManifestTensor& ours = place->second;
    if (ours.shape != theirs.shape || ours.dtype != theirs.dtype)
      throw CheckpointError(
          {.code = "LS1305",
           .what = cat("ranks disagree about tensor '", name, "': ", ours.dtype, " ", shape_text(ours.shape), " and ",
                       theirs.dtype, " ", shape_text(theirs.shape))});
    ours.pieces.insert(ours.pieces.end(), theirs.pieces.begin(), theirs.pieces.end());
  }
}

uint64_t Manifest::total_bytes() const {
  uint64_t total = 0;
  for (const auto& [path, file] : files) total += file.size;
  return total;
}

void check_cover(const Manifest& manifest, std::string_view origin) {
  for (const auto& [name, tensor] : manifest.tensors) {
    const auto fail = [&, &name = name](const std::string& what) {
      throw CheckpointError(
          {.code = "LS1305", .what = cat("tensor '", name, "' ", what), .where = std::string(origin)});
    };
    int64_t covered = 0;
    for (const Piece& piece : tensor.pieces) {
      if (!lies_in(piece.box, tensor.shape))
        fail(cat("of shape ", shape_text(tensor.shape), " has a piece at ", shape_text(piece.box.offset), " of shape ",
                 shape_text(piece.box.shape)));
      covered += volume(piece.box.shape);
    }
    if (const auto twice = find_overlap(tensor.pieces))
      fail(cat("is stored twice at ", shape_text(twice->second->box.offset), ": in ", twice->first->file, " and ",
               twice->second->file));
    // Inside and disjoint: the pieces cover the tensor exactly when they have as many elements.
    if (covered != volume(tensor.shape))
      fail(cat("is not whole: ", covered, " of ", volume(tensor.shape), " elements were saved"));
  }
}

std::string manifest_text(const Manifest& manifest) {
  OrderedJson json = {
      {"xxh3", std::string(kDigits, '0')}, {"format", "lockstep checkpoint"}, {"version", kVersion},
      {"lockstep", manifest.version},      {"step", manifest.step},           {"files", OrderedJson::object()},
      {"tensors", OrderedJson::object()}};
  for (const auto& [path, file] : manifest.files)
    json["files"][path] = {{"size", file.size}, {"xxh3", hash_text(file.hash)}};
  for (const auto& [name, tensor] : manifest.tensors) {
    OrderedJson pieces = OrderedJson::array();
    for (const Piece& piece : tensor.pieces) {
      pieces.push_back({{"file", piece.file},
                        {"offset", piece.box.offset},
                        {"shape", piece.box.shape},
                        {"xxh3", hash_text(piece.hash)}});
    }
    json["tensors"][name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"pieces", std::move(pieces)}};
  }
  std::string text = json.dump(1) + "\n";
  return text.replace(kFront.size(), kDigits, self_hash(text));
}

Manifest parse_manifest(std::string_view text, std::string_view origin, bool partial) {
  if (!text.starts_with(kFront) || text.size() < kFront.size() + kDigits) refuse(origin, "it does not begin as one");
  if (text.substr(kFront.size(), kDigits) != self_hash(std::string(text)))
    refuse(origin, "its bytes do not match its own checksum");
  try {
    const Manifest manifest = manifest_from(parse_json(text, origin), origin);
    if (!partial) check_cover(manifest, origin);
    return manifest;
  } catch (const Json::exception& error) {
    refuse(origin, error.what());
  } catch (const DataError& error) {
    refuse(origin, error.message().what);
  }
}

}  // namespace lockstep::checkpoint
