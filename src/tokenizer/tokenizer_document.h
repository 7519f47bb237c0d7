// A parser for tokenizer.json files. The two large tables of the model (vocabulary and merges) are parsed
// directly into specialized data structures, because they would take ten times the memory and time as JSON
// values. The rest of the document becomes a JSON value. Read next: tokenizer_json.h, which interprets the
// document.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "tokenizer/vocabulary.h"

namespace optimus {

// A list of pairs of strings in contiguous memory.
class MergeList {
 public:
  void add(std::string_view left, std::string_view right);
  std::size_t size() const { return places_.size(); }
  std::string_view left(std::size_t i) const { return part(places_[i].begin, places_[i].middle); }
  std::string_view right(std::size_t i) const { return part(places_[i].middle, places_[i].end); }

 private:
  struct Place {
    std::uint32_t begin, middle, end;
  };
  std::string_view part(std::uint32_t begin, std::uint32_t end) const {
    return std::string_view(characters_).substr(begin, end - begin);
  }
  std::string characters_;
  std::vector<Place> places_;
};

struct TokenizerDocument {
  Json remainder;               // the document without the two tables
  bool has_vocabulary = false;  // model.vocab exists and is an object
  Vocabulary vocabulary;
  bool has_merges = false;  // model.merges exists and is a list
  MergeList merges;         // from either notation of merges
};

// Throws a UserError that starts with `source` and contains the location of the error.
TokenizerDocument read_tokenizer_document(std::string_view text, const std::string& source);

}  // namespace optimus
