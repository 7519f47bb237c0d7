// See documents.h.
#include "data/documents.h"

#include <algorithm>
#include <cstring>

#include "base/json.h"
#include "base/text.h"

namespace optimus {
namespace {

bool is_jsonl(const Path& path) { return path.extension() == ".jsonl" || path.extension() == ".ndjson"; }

bool looks_binary(const Path& path) {
  const Outcome<MappedFile> file = MappedFile::open(path);
  if (!file) return false;  // reading the file reports the error
  const auto head = file->bytes().first(std::min<std::size_t>(file->bytes().size(), 8192));
  return std::find(head.begin(), head.end(), std::byte{0}) != head.end();
}

// Whether the file is a finished or partial token file, which is not text even if it contains no zero byte.
bool is_token_file(const Path& path) {
  const std::string name = path.filename().string();
  return path.extension() == ".idx" || path.extension() == ".bin" ||
         name.find(".bin.tmp-") != std::string::npos || name.find(".idx.tmp-") != std::string::npos;
}

bool is_hidden(const Path& path) { return path.filename().string().starts_with('.'); }

// The text files below a folder, sorted by name so that the result does not depend on the file system.
std::vector<Path> files_below(const Path& folder, EventSink& events) {
  std::vector<Path> files;
  std::error_code error,
      ignored;  // `ignored` is not checked, because a dangling link is neither a folder nor a file
  for (std::filesystem::recursive_directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    if (is_hidden(at->path())) {
      if (at->is_directory(ignored)) at.disable_recursion_pending();
    } else if (at->is_regular_file(ignored) && !is_token_file(at->path())) {
      files.push_back(at->path());
    }
  }
  if (error) throw RuntimeFailure("cannot read folder {}: {}", folder.string(), error.message());
  std::sort(files.begin(), files.end());
  const std::size_t num_found = files.size();
  std::erase_if(files, looks_binary);
  if (files.size() < num_found)
    events.report(Warning{fmt::format("{}: skipped {} of {} files that are not text", folder.string(),
                                      num_found - files.size(), num_found)});
  if (files.empty()) throw UserError("{}: the folder contains no text files", folder.string());
  return files;
}

}  // namespace

std::string text_of(const RawDocument& document, const std::string& text_key) {
  const std::string_view bytes(reinterpret_cast<const char*>(document.bytes.data()), document.bytes.size());
  if (document.line == 0) return std::string(bytes);
  const std::string location = fmt::format("{}: line {}", document.source, document.line);
  Json line;
  try {
    line = parse_json(bytes, document.source);
  } catch (const UserError& error) {
    // The parser counts lines from the start of this document, so its "line 1" is replaced with the line
    // number in the file.
    std::string description = error.what();
    const std::string first = document.source + ": line 1";
    throw UserError("{}{}", location,
                    description.starts_with(first) ? description.substr(first.size()) : ": " + description);
  }
  if (!line.is_object()) throw UserError("{}: expected an object with key {}", location, in_quotes(text_key));
  const auto text = line.find(text_key);
  if (text == line.end()) {
    std::vector<std::string> keys;
    for (const auto& [key, value] : line.items()) keys.push_back(key);
    throw UserError("{}: no key {} (found {}); set --text-key to the key that contains the text", location,
                    in_quotes(text_key), in_quotes(join(keys, ", "), 100));
  }
  if (!text->is_string())
    throw UserError("{}: {}: expected a string, got {}", location, text_key, in_quotes(text->dump()));
  return text->get<std::string>();
}

DocumentReader::DocumentReader(const std::vector<Path>& inputs, EventSink& events) {
  for (const Path& input : inputs) {
    std::error_code error;
    if (std::filesystem::is_directory(input, error)) {
      const std::vector<Path> below = files_below(input, events);
      files_.insert(files_.end(), below.begin(), below.end());
    } else if (std::filesystem::exists(input, error)) {
      if (looks_binary(input))
        throw UserError("{}: not text (zero byte in the first 8 KiB); expected UTF-8 text or jsonl",
                        input.string());
      files_.push_back(input);
    } else {
      throw UserError("{} does not exist; expected a text file, a jsonl file or a folder", input.string());
    }
  }
  for (const Path& file : files_) {
    std::error_code error;
    const auto size = std::filesystem::file_size(file, error);
    if (!error) total_bytes_ += static_cast<std::int64_t>(size);
  }
}

std::optional<RawDocument> DocumentReader::next() {
  while (true) {
    if (file_ != nullptr) {
      if (std::optional<RawDocument> line = next_line()) return line;
      file_.reset();
      ++next_file_;
    }
    if (next_file_ == files_.size()) return std::nullopt;
    const Path& path = files_[next_file_];
    auto file = std::make_shared<const MappedFile>(value_or_throw(MappedFile::open(path)));
    if (is_jsonl(path)) {
      file_ = std::move(file), offset_ = 0, line_ = 0;
      continue;
    }
    ++next_file_;
    bytes_read_ += std::ssize(file->bytes());
    const auto bytes = file->bytes();
    return RawDocument{std::move(file), path.string(), 0, bytes};
  }
}

std::optional<RawDocument> DocumentReader::next_line() {
  const auto bytes = file_->bytes();
  while (offset_ < bytes.size()) {
    const auto remaining = bytes.subspan(offset_);
    const void* const line_break = std::memchr(remaining.data(), '\n', remaining.size());
    const std::size_t length =
        line_break == nullptr
            ? remaining.size()
            : static_cast<std::size_t>(static_cast<const std::byte*>(line_break) - remaining.data());
    offset_ += length + 1, ++line_;
    bytes_read_ += static_cast<std::int64_t>(length) + (line_break != nullptr);
    const auto line = remaining.first(length);
    if (trim({reinterpret_cast<const char*>(line.data()), line.size()}).empty()) continue;
    return RawDocument{file_, files_[next_file_].string(), line_, line};
  }
  return std::nullopt;
}

}  // namespace optimus
