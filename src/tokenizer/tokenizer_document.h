// The text of a tokenizer.json, read once: the two large tables of its model go straight into their own form
// (as general JSON values they would take ten times the memory and the time), the rest is a JSON value. Read
// next: tokenizer_json.h, which understands the rest.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "tokenizer/vocabulary.h"

namespace optimus {

// Pairs of texts, in one piece of memory.
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
    return std::string_view(letters_).substr(begin, end - begin);
  }
  std::string letters_;
  std::vector<Place> places_;
};

struct TokenizerDocument {
  Json rest;                    // without the two tables
  bool has_vocabulary = false;  // model.vocab is there and an object
  Vocabulary vocabulary;
  bool has_merges = false;  // model.merges is there and a list
  MergeList merges;         // in either notation
};

// Throws UserError that names `source` and the place.
TokenizerDocument read_tokenizer_document(std::string_view text, const std::string& source);

}  // namespace optimus
