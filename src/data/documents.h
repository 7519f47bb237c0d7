// Raw text as a sequence of documents. A text file is one document, each line of a jsonl file is one
// document, and a folder contributes all its files in order of name.
//
// Reading has two parts, so that the expensive part can run on many threads. DocumentReader locates documents
// (byte ranges of a mapped file) on one thread, and text_of() extracts the text of a document on any thread.
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
  // Shared by the documents of one file, because several threads process them at the same time.
  std::shared_ptr<const MappedFile> file;
  std::string source;     // name of the file
  std::int64_t line = 0;  // 1-based line number in a jsonl file; 0 for a text file
  std::span<const std::byte> bytes;
};

// Returns the text of the document. Throws a UserError with the file and the line if a jsonl line is not an
// object with a string under `text_key`.
std::string text_of(const RawDocument& document, const std::string& text_key);

class DocumentReader {
 public:
  // Each input is a .jsonl (or .ndjson) file, a folder, or any other file, which is read as text. In a
  // folder, hidden files are ignored, and binary files (a zero byte in the first 8 KiB) are skipped with a
  // warning that reports their number. Throws a ReportedError if an input does not exist, is a binary file,
  // or is a folder without text files.
  DocumentReader(const std::vector<Path>& inputs, EventSink& events);
  std::optional<RawDocument> next();
  std::int64_t total_bytes() const { return total_bytes_; }
  std::int64_t bytes_read() const { return bytes_read_; }

 private:
  std::optional<RawDocument> next_line();

  std::vector<Path> files_;
  std::size_t next_file_ = 0;
  std::int64_t total_bytes_ = 0, bytes_read_ = 0;
  // The current jsonl file, with the offset of its next line and the number of lines read.
  std::shared_ptr<const MappedFile> file_;
  std::size_t offset_ = 0;
  std::int64_t line_ = 0;
};

}  // namespace optimus
