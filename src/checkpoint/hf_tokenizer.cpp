// Implements hf_tokenizer_files() of hf_folder.h: copies tokenizer.json and the related files in its folder.
#include <algorithm>

#include "base/json.h"
#include "checkpoint/hf_folder.h"
#include "tokenizer/open_tokenizer.h"

namespace optimus {
namespace {

constexpr Bytes kMaxTokenizerBytes{std::int64_t{1} << 30};
constexpr const char* kTokenizer = "tokenizer.json";
constexpr const char* kSettings = "tokenizer_config.json";

// The files that may accompany tokenizer.json.
constexpr const char* kCompanionFiles[] = {
    kSettings,   "special_tokens_map.json", "added_tokens.json",   "vocab.json",        "merges.txt",
    "vocab.txt", "tokenizer.model",         "chat_template.jinja", "chat_template.json"};

// A tokenizer_config.json with the generic tokenizer class, which uses tokenizer.json unchanged for all model
// families.
SmallFile generic_tokenizer_config(const std::string& end_token) {
  OrderedJson settings;
  settings["tokenizer_class"] = "PreTrainedTokenizerFast";
  if (!end_token.empty()) settings["bos_token"] = settings["eos_token"] = end_token;
  settings["clean_up_tokenization_spaces"] = false;
  return {kSettings, settings.dump(2) + "\n"};
}

std::string end_token_of(const Tokenizer& tokenizer) {
  const std::optional<TokenId> end_token = tokenizer.end_of_document();
  return end_token ? tokenizer.decode({*end_token}, false) : "";
}

std::vector<SmallFile> byte_tokenizer_files() {
  return {{kTokenizer, byte_tokenizer_json()}, generic_tokenizer_config(end_token_of(*byte_tokenizer()))};
}

}  // namespace

std::vector<SmallFile> hf_tokenizer_files(const std::string& tokenizer) {
  if (tokenizer == "bytes") return byte_tokenizer_files();
  std::error_code ignored;
  const Path tokenizer_path = tokenizer;
  const bool is_folder = std::filesystem::is_directory(tokenizer_path, ignored);
  const Path file = is_folder ? tokenizer_path / kTokenizer : tokenizer_path;
  std::vector<SmallFile> files;
  const bool has_table = !is_folder || std::filesystem::exists(file, ignored);
  if (has_table) files.push_back({kTokenizer, read_input_file(file, kMaxTokenizerBytes)});
  // A tokenizer file with a different name may be in a folder with unrelated files, so no companion files are
  // copied.
  if (file.filename() == kTokenizer)
    for (const char* name : kCompanionFiles)
      if (const Path path = file.parent_path() / name; std::filesystem::is_regular_file(path, ignored))
        files.push_back({name, read_input_file(path, kMaxTokenizerBytes)});
  const bool has_settings = std::any_of(
      files.begin(), files.end(), [](const SmallFile& small_file) { return small_file.name == kSettings; });
  if (has_table && !has_settings)
    files.push_back(
        generic_tokenizer_config(end_token_of(*parse_tokenizer(files[0].content, file.string()))));
  return files;
}

}  // namespace optimus
