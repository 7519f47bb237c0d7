// Implements SafetensorsFolder of safetensors.h: opens one file, or the shards of an index.
#include <algorithm>

#include "base/json.h"
#include "base/text.h"
#include "checkpoint/safetensors.h"

namespace optimus {
namespace {

constexpr Bytes kMaxIndexBytes{std::int64_t{64} << 20};  // 100,000 tensors need about 10 MB
constexpr std::size_t kMaxShards = 10'000;

// A shard must be in the same folder as its index, so names with a path are rejected.
void check_shard_name(const JsonView& view, const std::string& name) {
  const bool is_plain =
      !name.empty() && name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
  if (!is_plain || !ends_with(name, ".safetensors"))
    throw UserError("{}: expected the name of a .safetensors file in the index's folder, got {}",
                    view.location(), in_quotes(name));
}

}  // namespace

SafetensorsFolder::Match SafetensorsFolder::find(std::string_view name) const {
  for (const SafetensorsFile& file : files_)
    if (const StoredTensor* tensor = file.find(name)) return {tensor, &file};
  return {nullptr, nullptr};
}

std::vector<SafetensorsIndexRow> parse_safetensors_index(std::string_view text, const std::string& source) {
  const Json document = parse_json(text, source);
  std::vector<SafetensorsIndexRow> rows;
  for (const auto& [tensor, place] : JsonView(document, source).at("weight_map").members()) {
    check_shard_name(place, place.text());
    rows.push_back({tensor, place.text()});
  }
  if (rows.empty()) throw UserError("{}: weight_map contains no tensor", source);
  return rows;
}

namespace {

std::vector<SafetensorsIndexRow> read_index(const Path& path) {
  return parse_safetensors_index(value_or_throw(read_file(path, kMaxIndexBytes)), path.string());
}

std::vector<std::string> shard_names(std::span<const SafetensorsIndexRow> rows, const Path& index) {
  std::vector<std::string> names;
  for (const SafetensorsIndexRow& row : rows) names.push_back(row.file);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  if (names.size() > kMaxShards)
    throw UserError("{}: lists {} shards; at most {} are supported", index.string(), names.size(),
                    kMaxShards);
  return names;
}

// Checks that every tensor is in the file that the index assigns it to, and in no other file.
void check_shards(std::span<const SafetensorsIndexRow> rows, const std::vector<SafetensorsFile>& files) {
  std::unordered_map<std::string_view, const SafetensorsFile*> file_of_tensor;
  for (const SafetensorsFile& file : files)
    for (const StoredTensor& tensor : file.tensors())
      if (const auto [other, is_new] = file_of_tensor.emplace(tensor.name, &file); !is_new)
        throw UserError("{}: tensor {} is also in {}", file.path().string(), in_quotes(tensor.name),
                        other->second->path().filename().string());
  for (const SafetensorsIndexRow& row : rows) {
    const auto it = file_of_tensor.find(row.tensor);
    if (it == file_of_tensor.end() || it->second->path().filename() != row.file)
      throw UserError("{}: tensor {} is missing, although the index assigns it to this file",
                      (files.front().path().parent_path() / row.file).string(), in_quotes(row.tensor));
  }
}

}  // namespace

SafetensorsFolder SafetensorsFolder::open(const Path& path) {
  SafetensorsFolder result;
  result.path_ = path;
  std::error_code ignored;
  const auto exists = [&](std::string_view name) { return std::filesystem::exists(path / name, ignored); };
  if (!std::filesystem::is_directory(path, ignored)) {
    result.files_.push_back(SafetensorsFile::open(path));
  } else if (exists(kWeightsFile)) {
    result.files_.push_back(SafetensorsFile::open(path / kWeightsFile));
  } else if (exists(kWeightsIndex)) {
    const std::vector<SafetensorsIndexRow> rows = read_index(path / kWeightsIndex);
    for (const std::string& name : shard_names(rows, path / kWeightsIndex))
      result.files_.push_back(SafetensorsFile::open(path / name));
    check_shards(rows, result.files_);
  } else {
    throw UserError("{}: found neither {} nor {}{}", path.string(), kWeightsFile, kWeightsIndex,
                    exists("pytorch_model.bin") ? "; convert pytorch_model.bin to safetensors first" : "");
  }
  return result;
}

}  // namespace optimus
