// See open_tokenizer.h.
#include "tokenizer/open_tokenizer.h"

#include "tokenizer/pipeline_tokenizer.h"
#include "tokenizer/tokenizer_json.h"

namespace optimus {

namespace {

constexpr Bytes kMaxFileBytes(std::int64_t{1} << 30);

}  // namespace

std::unique_ptr<Tokenizer> parse_tokenizer(std::string_view json, const std::string& source) {
  return make_pipeline_tokenizer(read_tokenizer_parts(json, source));
}

std::unique_ptr<Tokenizer> load_tokenizer(const Path& path) {
  std::error_code ignored;
  const Path file = std::filesystem::is_directory(path, ignored) ? path / "tokenizer.json" : path;
  const std::string content = read_input_file(file, kMaxFileBytes);
  return content == byte_tokenizer_json() ? byte_tokenizer() : parse_tokenizer(content, file.string());
}

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& bytes_or_path) {
  return bytes_or_path == "bytes" ? byte_tokenizer() : load_tokenizer(bytes_or_path);
}

std::string default_tokenizer(const std::string& model) {
  std::error_code error;
  const Path path = Path(model) / "tokenizer.json";
  return !model.empty() && std::filesystem::is_regular_file(path, error) ? path.string() : "bytes";
}

}  // namespace optimus
