// Parser for the text of a tokenizer.json. The two large tables of the model (vocabulary and merges) are
// parsed directly into their own data structures, because as general JSON values they would need ten times
// the memory and the time. The rest of the document is a JSON value. Read next: tokenizer_json.h, which
// interprets it.
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
  MergeList merges;         // from either notation
};

// Throws a UserError that names `source` and the location of the error in it.
TokenizerDocument read_tokenizer_document(std::string_view text, const std::string& source);

}  // namespace optimus
