// Implements hf_folder.h. The tokenizer files are in hf_tokenizer.cpp.
#include "checkpoint/hf_folder.h"

#include <optional>

#include "base/json.h"
#include "model/hf_config.h"
#include "tokenizer/open_tokenizer.h"

namespace optimus {
namespace {

constexpr Bytes kMaxSettingsBytes{std::int64_t{16} << 20};

bool file_exists(const Path& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error);
}

// Reads a small JSON file from the folder that the model came from. Returns null if the file does not exist.
Json read_origin_json(const Path& folder, const char* name) {
  if (folder.empty() || !file_exists(folder / name)) return nullptr;
  const Path path = folder / name;
  return parse_json(read_input_file(path, kMaxSettingsBytes), path.string());
}

const char* torch_name(ElementType type) {
  switch (type) {
    case ElementType::f64:
      return "float64";
    case ElementType::f32:
      return "float32";
    case ElementType::bf16:
      return "bfloat16";
    case ElementType::f16:
      return "float16";
    case ElementType::i64:
    case ElementType::i32:
    case ElementType::i16:
    case ElementType::i8:
    case ElementType::u8:
    case ElementType::boolean:
      break;
  }
  ensure(false, "weights cannot have the type {}", text(type));
  return "";
}

// The ids of the tokens that begin and end a text. They come from the config in the origin folder if it has
// them. Otherwise both are the tokenizer's end-of-document token, which also precedes each document.
struct BoundaryTokens {
  Json begin, end;
};

BoundaryTokens boundary_tokens(const HfDescription& description, const Json& origin) {
  BoundaryTokens tokens;
  if (origin.is_object()) {
    tokens.begin = origin.value("bos_token_id", Json());
    tokens.end = origin.value("eos_token_id", Json());
  }
  const bool is_known = !tokens.begin.is_null() || !tokens.end.is_null();
  const bool uses_origin_tokenizer =
      description.tokenizer.empty() || description.tokenizer == description.origin.string();
  if (is_known || uses_origin_tokenizer || !description.model.is_causal) return tokens;
  const auto end_token = open_tokenizer(description.tokenizer)->end_of_document();
  if (end_token && *end_token < description.model.vocab) tokens.begin = tokens.end = *end_token;
  return tokens;
}

// Appends eos_token_id, which may be one id or a list of ids.
void add_ids(const Json& document, const std::string& source, std::vector<TokenId>& ids) {
  const auto value = JsonView(document, source).find("eos_token_id");
  if (!value) return;
  const auto add = [&](const JsonView& id) {
    ids.push_back(static_cast<TokenId>(id.integer(0, std::int64_t{1} << 30)));
  };
  if (!value->raw().is_array()) return add(*value);
  for (const JsonView& id : value->elements()) add(id);
}

}  // namespace

std::vector<TokenId> hf_end_tokens(const Path& folder) {
  std::vector<TokenId> ids;
  for (const char* name : {"generation_config.json", "config.json"}) {
    const Json document = read_origin_json(folder, name);
    if (ids.empty() && document.is_object()) add_ids(document, (folder / name).string(), ids);
  }
  return ids;
}

std::vector<SmallFile> hf_description(const HfDescription& description) {
  std::vector<SmallFile> files;
  if (!description.tokenizer.empty()) files = hf_tokenizer_files(description.tokenizer);
  const BoundaryTokens tokens =
      boundary_tokens(description, read_origin_json(description.origin, "config.json"));
  const Path settings = description.origin / "generation_config.json";
  if (!description.origin.empty() && file_exists(settings)) {
    files.push_back({settings.filename().string(), read_input_file(settings, kMaxSettingsBytes)});
  } else if (description.model.is_causal) {
    const OrderedJson generation{{"bos_token_id", tokens.begin}, {"eos_token_id", tokens.end}};
    files.push_back({settings.filename().string(), generation.dump(2) + "\n"});
  }
  OrderedJson config = hf_config_from_spec(description.model);
  config["bos_token_id"] = tokens.begin;
  config["eos_token_id"] = tokens.end;
  for (const char* key : {"torch_dtype", "dtype"})  // transformers version 4, version 5
    config[key] = torch_name(description.type);
  files.push_back({"config.json", config.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n"});
  return files;
}

Outcome<void> write_files(FileSystem& files, const Path& folder, const std::vector<SmallFile>& small_files) {
  for (const SmallFile& file : small_files)
    if (Outcome<void> outcome = write_atomically(files, folder / file.name, file.content); !outcome)
      return outcome;
  return {};
}

}  // namespace optimus
