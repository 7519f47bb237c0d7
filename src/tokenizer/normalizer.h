// Text normalization before splitting: Unicode normal forms, BERT's cleaning, replacements. A normalizer is a
// list of steps, each of which transforms the text. Read next: pre_tokenizer.h.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tokenizer/split_regex.h"
#include "tokenizer/unicode.h"

namespace optimus {

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };

struct BertNormalizer {
  bool clean_text = true;
  bool handle_chinese_chars = true;
  bool strip_accents = true;
  bool lowercase = true;
};
struct Lowercase {};
struct Prepend {
  std::string text;
};
struct Replace {
  std::variant<std::string, SplitRegex> pattern;
  std::string content;
};
using NormalizerStep = std::variant<UnicodeForm, BertNormalizer, Lowercase, Prepend, Replace>;

// Working memory for one thread.
struct NormalizerScratch {
  std::string text, other_text;
  std::vector<CodePoint> run;
};

class Normalizer {
 public:
  void add(NormalizerStep step) { steps_.push_back(std::move(step)); }
  bool is_empty() const { return steps_.empty(); }
  // Whether a step may remove characters at the start of a text.
  bool may_remove_text() const;

  // `text` must be valid UTF-8 and must not point into `scratch`. The result is `text` itself or points into
  // `scratch`.
  std::string_view apply(std::string_view text, const CharClasses& classes, NormalizerScratch& scratch,
                         RegexScratch& regex_scratch) const;

 private:
  std::vector<NormalizerStep> steps_;
};

// Appends the normal form of `text` to `out`. `run` is working memory.
void append_normal_form(UnicodeForm form, std::string_view text, const CharClasses& classes,
                        std::vector<CodePoint>& run, std::string& out);

// Replaces every occurrence of the pattern and appends the result to `out`. Used by the Replace steps of
// normalizers and decoders.
void append_replaced(const Replace& replace, std::string_view text, RegexScratch& scratch, std::string& out);

}  // namespace optimus
