// The JSON format of manifests and of shard lists; see manifest.h. Each box is one row of numbers, so the
// manifest takes only a few megabytes for thousands of ranks. If several fields store the same box in the
// same file, they share a row.
#include <algorithm>
#include <charconv>
#include <map>
#include <tuple>

#include "base/json.h"
#include "base/text.h"
#include "checkpoint/manifest.h"

namespace optimus {
namespace {

constexpr const char* kManifestFormat = "optimus-checkpoint";
constexpr const char* kListFormat = "optimus-shard-list";
constexpr Bytes kMaxManifestBytes{std::int64_t{256} << 20};

// Appends the row of one box: [tensor, file, begin, end, …].
void append_row(const CheckpointPiece& piece, std::string& out) {
  out += fmt::format("[{}, {}", piece.tensor, piece.file);
  for (int d = 0; d < piece.box.num_dims; ++d)
    out += fmt::format(", {}, {}", piece.box[d].begin, piece.box[d].end);
  out += "]";
}

std::string in_lines(const std::vector<std::string>& rows, const char* indent) {
  std::string result = "[";
  for (const std::string& row : rows) result.append(&row == &rows.front() ? "\n" : ",\n") += indent + row;
  return result + "]";
}

std::string piece_groups(std::vector<CheckpointPiece> pieces) {
  const auto group_key = [](const CheckpointPiece& p) { return std::tie(p.tensor, p.box, p.file); };
  std::stable_sort(pieces.begin(), pieces.end(), [&](const CheckpointPiece& a, const CheckpointPiece& b) {
    return group_key(a) < group_key(b);
  });
  std::map<std::vector<StateField>, std::vector<std::string>> rows;
  for (std::size_t i = 0; i < pieces.size();) {
    std::vector<StateField> fields;
    std::string row;
    append_row(pieces[i], row);
    const CheckpointPiece first = pieces[i];
    for (; i < pieces.size() && group_key(pieces[i]) == group_key(first); ++i)
      fields.push_back(pieces[i].field);
    rows[fields].push_back(std::move(row));
  }
  std::vector<std::string> groups;
  for (const auto& [fields, boxes] : rows) {
    std::vector<std::string> names;
    for (const StateField field : fields) names.push_back(fmt::format("\"{}\"", text(field)));
    groups.push_back(
        fmt::format(R"({{"fields": [{}], "boxes": {}}})", fmt::join(names, ", "), in_lines(boxes, "  ")));
  }
  return in_lines(groups, " ");
}

std::string content(const Manifest& manifest, const char* format) {
  std::vector<std::string> files, tensors;
  for (const CheckpointFile& file : manifest.files)
    files.push_back(fmt::format(R"({{"name": {}, "bytes": {}, "xxh3": "{}"}})", Json(file.name).dump(),
                                file.bytes.value, text(file.sum)));
  for (const CheckpointTensor& tensor : manifest.tensors)
    tensors.push_back(
        fmt::format(R"({{"name": {}, "shape": {}}})", Json(tensor.name).dump(), text(tensor.shape)));
  return fmt::format(
      "{{\"format\": \"{}\", \"version\": {}, \"step\": {},\n\"files\": {},\n\"tensors\": {},\n\"pieces\": "
      "{}}}\n",
      format, kManifestVersion, manifest.step, in_lines(files, " "), in_lines(tensors, " "),
      piece_groups(manifest.pieces));
}

Checksum parse_checksum(const JsonView& view) {
  const std::string& digits = view.text();
  Checksum sum;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), sum.value, 16);
  if (digits.size() != 16 || error != std::errc() || end != digits.data() + 16)
    view.refuse("16 hexadecimal digits");
  return sum;
}

StateField parse_field(const JsonView& view) {
  for (const StateField field : kStateFields)
    if (text(field) == view.text()) return field;
  view.refuse("master, first or second");
}

Shape parse_shape(const JsonView& view) {
  const std::vector<JsonView> sizes = view.elements();
  if (sizes.empty() || std::ssize(sizes) > kMaxDims) view.refuse("a list of 1 to 4 sizes");
  Shape shape;
  for (const JsonView& size : sizes) shape[shape.num_dims++] = size.integer(1);
  return shape;
}

// Returns a non-negative integer, or -1 if the value is anything else.
std::int64_t number_at(const Json& row, std::size_t index) {
  const Json& value = row[index];
  if (!value.is_number_unsigned()) return -1;
  const auto unsigned_value = value.get<std::uint64_t>();
  return unsigned_value > static_cast<std::uint64_t>(INT64_MAX) ? -1
                                                                : static_cast<std::int64_t>(unsigned_value);
}

// Reads the row without a JsonView per number, because there may be millions of numbers.
CheckpointPiece parse_row(const Json& row, const std::string& location) {
  const auto refuse = [&] {
    JsonView(row, location).refuse("[tensor, file, begin, end, …] with integers for 1 to 4 dimensions");
  };
  if (!row.is_array() || row.size() < 4 || row.size() > 2 + 2 * kMaxDims || row.size() % 2 != 0) refuse();
  for (std::size_t i = 0; i < row.size(); ++i)
    if (number_at(row, i) < 0 || (i < 2 && number_at(row, i) > INT32_MAX)) refuse();
  CheckpointPiece piece;
  piece.tensor = static_cast<int>(number_at(row, 0));
  piece.file = static_cast<int>(number_at(row, 1));
  for (std::size_t i = 2; i < row.size(); i += 2)
    piece.box[piece.box.num_dims++] = {number_at(row, i), number_at(row, i + 1)};
  return piece;
}

void parse_group(const JsonView& group, std::vector<CheckpointPiece>& pieces) {
  static const std::string keys[] = {"fields", "boxes"};
  group.allow_only(keys);
  std::vector<StateField> fields;
  for (const JsonView& name : group.at("fields").elements()) {
    fields.push_back(parse_field(name));
    if (std::count(fields.begin(), fields.end(), fields.back()) > 1) name.refuse("a unique field");
  }
  const JsonView boxes = group.at("boxes");
  if (!boxes.raw().is_array()) boxes.refuse("a list");
  for (const Json& row : boxes.raw()) {
    CheckpointPiece piece = parse_row(row, boxes.location());
    for (const StateField field : fields) piece.field = field, pieces.push_back(piece);
  }
}

void check_version(const JsonView& view, const char* format) {
  if (view.at("format").text() != format)
    throw UserError("{}: expected format {}, got {}", view.location(), format,
                    in_quotes(view.at("format").text()));
  const std::int64_t version = view.at("version").integer();
  if (version != kManifestVersion)
    throw UserError("{}: checkpoint format version {} is not supported; this program reads version {}{}",
                    view.location(), version, kManifestVersion,
                    version > kManifestVersion ? "; a newer program is required" : "");
}

Manifest parse_content(std::string_view text, const std::string& source, const char* format) {
  const Json document = parse_json(text, source);
  const JsonView view(document, source);
  check_version(view, format);
  static const std::string keys[] = {"format", "version", "step", "files", "tensors", "pieces"};
  static const std::string file_keys[] = {"name", "bytes", "xxh3"}, tensor_keys[] = {"name", "shape"};
  view.allow_only(keys);
  Manifest manifest;
  manifest.step = view.at("step").integer(0);
  for (const JsonView& file : view.at("files").elements()) {
    file.allow_only(file_keys);
    manifest.files.push_back(
        {file.at("name").text(), Bytes(file.at("bytes").integer(0)), parse_checksum(file.at("xxh3"))});
  }
  for (const JsonView& tensor : view.at("tensors").elements()) {
    tensor.allow_only(tensor_keys);
    manifest.tensors.push_back({tensor.at("name").text(), parse_shape(tensor.at("shape"))});
  }
  for (const JsonView& group : view.at("pieces").elements()) parse_group(group, manifest.pieces);
  return manifest;
}

}  // namespace

std::string manifest_text(const Manifest& manifest) { return content(manifest, kManifestFormat); }
std::string shard_list_text(const Manifest& list) { return content(list, kListFormat); }

Manifest parse_manifest(std::string_view text, const std::string& source) {
  Manifest manifest = parse_content(text, source, kManifestFormat);
  make_valid(manifest, source);
  return manifest;
}

Manifest parse_shard_list(std::string_view text, const std::string& source) {
  return parse_content(text, source, kListFormat);
}

Manifest read_manifest(const Path& folder) {
  const Path path = folder / kManifestFile;
  const std::string content = value_or_throw(read_file(path, kMaxManifestBytes));
  try {
    return parse_manifest(content, path.string());
  } catch (const UserError& damage) {  // a damaged manifest is not a user mistake
    throw RuntimeFailure("{}", damage.what());
  }
}

}  // namespace optimus
