// Functions that open tokenizers.
//
// load_tokenizer() reads Hugging Face's tokenizer.json: byte-level BPE (GPT-2, Llama 3, Qwen 2 and related
// models), character BPE (Llama 2, Mistral) and WordPiece (BERT). A file that requires an unsupported feature
// is rejected with a message that names the feature. Read next: pipeline_tokenizer.h, which shows the
// processing steps.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/file.h"
#include "tokenizer/tokenizer.h"

namespace optimus {

// `path` is a tokenizer.json or a folder that contains one. Throws a UserError with the file and the field if
// the file is invalid or not supported.
std::unique_ptr<Tokenizer> load_tokenizer(const Path& path);
// Parses a tokenizer.json in memory. Messages refer to it as `source`.
std::unique_ptr<Tokenizer> parse_tokenizer(std::string_view json, const std::string& source);

// `bytes_or_path` is "bytes" (the byte tokenizer), a tokenizer.json, or a folder that contains one.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& bytes_or_path);

// The default of --tokenizer: the tokenizer.json in the folder `model` if there is one, and "bytes"
// otherwise.
std::string default_tokenizer(const std::string& model);

}  // namespace optimus
