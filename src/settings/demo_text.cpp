// Implements demo_text.h: finds the newest headers under /usr/include/c++ and tokenizes them.
#include "settings/demo_text.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

namespace optimus {
namespace {

// The folder of the newest version, for example /usr/include/c++/12.
Path header_folder() {
  std::error_code error;
  Path newest;
  int version = 0;
  for (std::filesystem::directory_iterator at("/usr/include/c++", error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.empty() || name.size() > 4 ||
        !std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isdigit(c) != 0; }))
      continue;
    if (std::stoi(name) > version) version = std::stoi(name), newest = at->path();
  }
  if (newest.empty())
    throw UserError(
        "the default training data, the C++ headers in /usr/include/c++, does not exist; specify a text with "
        "--data FILE");
  return newest;
}

bool names_license(std::string_view text) {
  return text.find("icense") != std::string_view::npos || text.find("Copyright") != std::string_view::npos;
}

// The end of the comment at the start of the text (lines of // or one /* … */), or 0 if the text does not
// start with a comment.
std::size_t comment_end(std::string_view text) {
  if (text.starts_with("/*")) {
    const std::size_t end = text.find("*/");
    return end == std::string_view::npos ? 0 : end + 2;
  }
  std::size_t end = 0;
  while (text.substr(end).starts_with("//")) {
    const std::size_t line = text.find('\n', end);
    if (line == std::string_view::npos) return text.size();
    end = line + 1;
  }
  return end;
}

}  // namespace

std::string_view without_license(std::string_view text) {
  while (true) {
    while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())) != 0)
      text.remove_prefix(1);
    const std::size_t end = comment_end(text);
    if (end == 0 || !names_license(text.substr(0, end))) return text;
    text.remove_prefix(end);
  }
}

std::shared_ptr<const TokenSet> demo_text(const Tokenizer& tokenizer) {
  const Path folder = header_folder();
  std::vector<Path> files;
  for (const char* part : {"", "bits", "ext", "experimental"}) {
    std::error_code error;
    for (std::filesystem::directory_iterator at(folder / part, error), end; !error && at != end;
         at.increment(error))
      if (at->is_regular_file(error)) files.push_back(at->path());
  }
  std::sort(files.begin(), files.end());
  std::vector<TokenId> tokens;
  std::vector<std::int64_t> starts;
  for (const Path& file : files) {
    const Outcome<std::string> text = read_file(file, Bytes(1 << 20));
    if (!text || text->find('\0') != std::string::npos) continue;
    starts.push_back(std::ssize(tokens));
    tokenizer.encode(without_license(*text), tokens);
    if (const auto end = tokenizer.end_of_document()) tokens.push_back(*end);
  }
  if (tokens.empty())
    throw UserError("{} contains no text; specify a text with --data FILE", folder.string());
  return tokens_in_memory(std::move(tokens), std::move(starts));
}

}  // namespace optimus
