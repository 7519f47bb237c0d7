// Raw text as a sequence of documents: a text file is one, a line of a jsonl file is one, a folder is all its
// files in the order of their names.
//
// Reading is split in two so that the costly half can run on many threads: DocumentReader finds the pieces (a
// range of bytes of a mapped file) on one thread; text_of() turns a piece into text on any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/event.h"
#include "base/file.h"

namespace optimus {

// A document that has been found but not yet parsed.
struct RawDocument {
  std::shared_ptr<const MappedFile>
      file;               // shared by the documents of one file, which are in flight on many threads
  std::string source;     // the file's name
  std::int64_t line = 0;  // of a jsonl file, from 1; 0 for a text file
  std::span<const std::byte> bytes;
};

// The document's text. Throws UserError naming file and line when a jsonl line is no object with a text in
// `text_key`.
std::string text_of(const RawDocument& document, const std::string& text_key);

class DocumentReader {
 public:
  // Each input: a .jsonl (or .ndjson) file, any other file as text, or a folder. In a folder hidden files and
  // files that are not text (a zero byte in the first 8 KiB) are left out, with a warning that counts them.
  // Throws UserError when an input does not exist, is a file that is not text, or is a folder that holds no text.
  DocumentReader(const std::vector<Path>& inputs, EventSink& events);
  std::optional<RawDocument> next();
  std::int64_t total_bytes() const { return total_bytes_; }
  std::int64_t bytes_read() const { return bytes_read_; }

 private:
  std::optional<RawDocument> next_line();

  std::vector<Path> files_;
  std::size_t next_file_ = 0;
  std::int64_t total_bytes_ = 0, bytes_read_ = 0;
  // The jsonl file being read, and how far.
  std::shared_ptr<const MappedFile> file_;
  std::size_t offset_ = 0;
  std::int64_t line_ = 0;
};

}  // namespace optimus
