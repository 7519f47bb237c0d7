// Raw text as a sequence of documents: a text file is one document, each line of a jsonl file is one
// document, and a folder contributes all its files in the order of their names.
//
// Reading has two parts, so that the expensive one can run on many threads: DocumentReader locates
// documents (byte ranges of a mapped file) on one thread; text_of() extracts the text of a document on any
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/event.h"
#include "base/file.h"

namespace optimus {

// A document that has been located but not yet parsed.
struct RawDocument {
  // Shared by the documents of one file, which several threads process at the same time.
  std::shared_ptr<const MappedFile> file;
  std::string source;     // name of the file
  std::int64_t line = 0;  // line number in a jsonl file, counted from 1; 0 for a text file
  std::span<const std::byte> bytes;
};

// The text of the document. Throws a UserError that names the file and the line if a jsonl line is not an
// object with a string in `text_key`.
std::string text_of(const RawDocument& document, const std::string& text_key);

class DocumentReader {
 public:
  // Each input is a .jsonl (or .ndjson) file, a folder, or any other file, which is read as text. In a
  // folder, hidden files and binary files (a zero byte in the first 8 KiB) are skipped with a warning that
  // reports their number. Throws a ReportedError if an input does not exist, is a binary file, or is a
  // folder without text files.
  DocumentReader(const std::vector<Path>& inputs, EventSink& events);
  std::optional<RawDocument> next();
  std::int64_t total_bytes() const { return total_bytes_; }
  std::int64_t bytes_read() const { return bytes_read_; }

 private:
  std::optional<RawDocument> next_line();

  std::vector<Path> files_;
  std::size_t next_file_ = 0;
  std::int64_t total_bytes_ = 0, bytes_read_ = 0;
  // The current jsonl file, and the offset and line number of the next line in it.
  std::shared_ptr<const MappedFile> file_;
  std::size_t offset_ = 0;
  std::int64_t line_ = 0;
};

}  // namespace optimus
