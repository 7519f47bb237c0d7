// Implements safetensors.h. The header is parsed as a stream of JSON events instead of a tree. So a large
// malicious header needs only as much memory as the tensors that it lists, and duplicate names are detected.
#include "checkpoint/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>

#include "base/json.h"
#include "base/text.h"

namespace optimus {
namespace {

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the reference implementation
constexpr std::string_view kMetadata = "__metadata__";

// A header entry during parsing.
struct Entry {
  std::string name;
  std::optional<ElementType> type;
  std::optional<std::vector<std::int64_t>> shape, offsets;
};

// Receives the JSON events of a header, which must start with "{". Depth 1 is the header object, depth 2 is a
// tensor or the metadata, and depth 3 is a list.
class HeaderEvents final : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderEvents(const std::string& source) : source_(source) {}
  std::vector<Entry> entries;
  SafetensorsMetadata metadata;

  bool null() override { return refuse("null"); }
  bool boolean(bool) override { return refuse("true or false"); }
  bool number_integer(number_integer_t) override { return refuse("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return refuse("a fraction"); }
  bool binary(binary_t&) override { return refuse("binary data"); }

  bool number_unsigned(number_unsigned_t number) override {
    if (depth_ != 3) return refuse("a number");
    if (number > static_cast<std::uint64_t>(INT64_MAX)) return refuse("a number that is too large");
    if (list_->size() >= kMaxStoredDims) return refuse(fmt::format("more than {} numbers", kMaxStoredDims));
    list_->push_back(static_cast<std::int64_t>(number));
    return true;
  }

  bool string(string_t& text) override {
    if (depth_ != 2) return refuse("a string");
    if (is_metadata_) return metadata.insert_or_assign(key_, std::move(text)), true;
    if (key_ != "dtype") return refuse("a string");
    if (entry().type) throw UserError("{}: dtype appears twice", location());
    entry().type = find_element_type(text);
    if (!entry().type)
      throw UserError("{}: dtype {} is not one of {}", location(), in_quotes(text), element_type_names());
    return true;
  }

  bool start_object(std::size_t) override {
    if (depth_ >= 2) return refuse("an object");
    if (++depth_ == 2 && !is_metadata_)
      entries.push_back({.name = key_, .type = {}, .shape = {}, .offsets = {}});
    return true;
  }

  bool key(string_t& name) override {
    key_ = std::move(name);
    if (depth_ == 1) start_entry();
    return true;
  }

  bool end_object() override {
    if (depth_ == 2 && !is_metadata_) finish_entry();
    --depth_;
    return true;
  }

  bool start_array(std::size_t) override {
    if (depth_ != 2 || is_metadata_) return refuse("a list");
    if (key_ != "shape" && key_ != "data_offsets") return refuse("a list");
    auto& target = key_ == "shape" ? entry().shape : entry().offsets;
    if (target) throw UserError("{}: {} appears twice", location(), key_);
    list_ = &target.emplace();
    depth_ = 3;
    return true;
  }

  bool end_array() override { return depth_ = 2, true; }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    throw UserError("{}: the header is not valid JSON at byte {}", source_, position);
  }

 private:
  Entry& entry() { return entries.back(); }

  std::string location() const {
    if (depth_ < 2) return fmt::format("{}: header", source_);
    return fmt::format("{}: {}", source_,
                       is_metadata_ ? std::string(kMetadata) : "tensor " + in_quotes(entries.back().name));
  }

  void start_entry() {
    if (!names_.insert(key_).second) throw UserError("{}: {} is listed twice", source_, in_quotes(key_));
    is_metadata_ = key_ == kMetadata;
  }

  void finish_entry() {
    const char* const missing = !entry().type      ? "dtype"
                                : !entry().shape   ? "shape"
                                : !entry().offsets ? "data_offsets"
                                                   : "";
    if (*missing) throw UserError("{}: {} is missing", location(), missing);
    if (entry().offsets->size() != 2)
      throw UserError("{}: data_offsets: expected [begin, end], got {} numbers", location(),
                      entry().offsets->size());
  }

  // nullptr: the format does not define the key.
  const char* expected_value() const {
    if (depth_ == 1) return "an object with dtype, shape and data_offsets";
    if (depth_ == 3) return "non-negative integers";
    if (is_metadata_ || key_ == "dtype") return "a string";
    if (key_ == "shape" || key_ == "data_offsets") return "a list of integers";
    return nullptr;
  }

  // Never returns. The return type is bool so that event functions can return the result of the call.
  [[noreturn]] bool refuse(std::string_view actual) const {
    const char* const expectation = expected_value();
    if (expectation == nullptr)
      throw UserError("{}: unknown key {}; expected dtype, shape or data_offsets", location(),
                      in_quotes(key_));
    throw UserError("{}: {}: expected {}, got {}", location(), in_quotes(key_), expectation, actual);
  }

  const std::string& source_;
  int depth_ = 0;
  bool is_metadata_ = false;
  std::string key_;
  std::unordered_set<std::string> names_;
  std::vector<std::int64_t>* list_ = nullptr;
};

// The size in bytes of a tensor with this shape and type, or nullopt if it overflows.
std::optional<std::int64_t> checked_bytes(std::span<const std::int64_t> shape, ElementType type) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  std::int64_t product = width(type);
  for (const std::int64_t size : shape)
    if (__builtin_mul_overflow(product, size, &product)) return std::nullopt;
  return product;
}

std::string_view header_of(std::span<const std::byte> file, const std::string& source) {
  if (file.size() < 8)
    throw UserError("{}: not a safetensors file: it has {} bytes; at least 8 are required", source,
                    file.size());
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  if (length > kMaxHeaderBytes)
    throw UserError("{}: not a safetensors file: the header has {} bytes; at most {} are allowed", source,
                    length, kMaxHeaderBytes);
  if (length > file.size() - 8)
    throw UserError("{}: truncated: a header of {} bytes in a file of {} bytes", source, length, file.size());
  const std::string_view header(reinterpret_cast<const char*>(file.data()) + 8, length);
  if (!starts_with(header, "{"))
    throw UserError("{}: not a safetensors file: expected a header that starts with '{{'", source);
  return header;
}

StoredTensor tensor_of_entry(const Entry& entry, std::span<const std::byte> data, const std::string& source) {
  const std::int64_t begin = (*entry.offsets)[0], end = (*entry.offsets)[1];
  const auto location = [&] { return fmt::format("{}: tensor {}", source, in_quotes(entry.name)); };
  if (begin > end || end > static_cast<std::int64_t>(data.size()))
    throw UserError("{}: data_offsets [{}, {}] are not inside the {} bytes of data", location(), begin, end,
                    data.size());
  const std::optional<std::int64_t> size = checked_bytes(*entry.shape, *entry.type);
  if (size != end - begin)
    throw UserError("{}: the data has {} bytes, but {} with shape {} requires {}", location(), end - begin,
                    text(*entry.type), shape_text(*entry.shape),
                    size ? std::to_string(*size) : "more than a file can contain");
  StoredTensor tensor;
  tensor.name = entry.name;
  tensor.type = *entry.type;
  tensor.shape = *entry.shape;
  tensor.bytes = data.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  return tensor;
}

// Checks that every byte belongs to exactly one tensor.
void check_coverage(std::span<const StoredTensor> tensors, std::span<const std::byte> data,
                    const std::string& source) {
  const std::byte* position = data.data();
  for (const StoredTensor& tensor : tensors) {
    if (tensor.bytes.data() != position)
      throw UserError(
          "{}: tensor {}: expected to begin at byte {} of the data, got {}; tensors must not overlap or "
          "leave gaps",
          source, in_quotes(tensor.name), position - data.data(), tensor.bytes.data() - data.data());
    position += tensor.bytes.size();
  }
  if (position != data.data() + data.size())
    throw UserError("{}: {} bytes after the last tensor do not belong to any tensor", source,
                    data.data() + data.size() - position);
}

}  // namespace

std::string shape_text(std::span<const std::int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::int64_t TensorHeader::num_bytes() const {
  const std::optional<std::int64_t> size = checked_bytes(shape, type);
  ensure(size.has_value(), "tensor {} of shape {} is too large", name, shape_text(shape));
  return *size;
}

SafetensorsContent parse_safetensors(std::span<const std::byte> file, const std::string& source) {
  const std::string_view header = header_of(file, source);
  const std::span<const std::byte> data = file.subspan(8 + header.size());
  HeaderEvents events(source);
  Json::sax_parse(header, &events);
  SafetensorsContent content;
  content.metadata = std::move(events.metadata);
  content.tensors.reserve(events.entries.size());
  for (const Entry& entry : events.entries) content.tensors.push_back(tensor_of_entry(entry, data, source));
  std::stable_sort(
      content.tensors.begin(), content.tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
        return std::pair(a.bytes.data(), a.bytes.size()) < std::pair(b.bytes.data(), b.bytes.size());
      });
  check_coverage(content.tensors, data, source);
  return content;
}

SafetensorsFile SafetensorsFile::open(const Path& path) {
  return open(path, value_or_throw(MappedFile::open(path)));
}

SafetensorsFile SafetensorsFile::open(const Path& path, MappedFile file) {
  SafetensorsFile result;
  result.path_ = path;
  result.file_ = std::move(file);
  result.content_ = parse_safetensors(result.file_.bytes(), path.string());
  for (std::size_t i = 0; i < result.content_.tensors.size(); ++i)
    result.tensor_index_.emplace(result.content_.tensors[i].name, i);
  return result;
}

const StoredTensor* SafetensorsFile::find(std::string_view name) const {
  const auto it = tensor_index_.find(name);
  return it == tensor_index_.end() ? nullptr : &content_.tensors[it->second];
}

}  // namespace optimus
