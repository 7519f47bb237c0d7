// What happens to the text before it is split: Unicode normal forms, BERT's cleaning, replacements. A list of
// steps, each from text to text. Read next: pre_tokenizer.h.
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

// One per thread.
struct NormalizerScratch {
  std::string text, other_text;
  std::vector<CodePoint> run;
};

class Normalizer {
 public:
  void add(NormalizerStep step) { steps_.push_back(std::move(step)); }
  bool is_empty() const { return steps_.empty(); }
  // Whether a text's first characters may vanish.
  bool may_remove_text() const;

  // `text` is valid UTF-8 and does not lie in `scratch`. The result is `text` itself or lies in `scratch`.
  std::string_view apply(std::string_view text, const CharClasses& classes, NormalizerScratch& scratch,
                         RegexScratch& regex_scratch) const;

 private:
  std::vector<NormalizerStep> steps_;
};

// Appends the normal form of `text`. `run` is scratch.
void append_normal_form(UnicodeForm form, std::string_view text, const CharClasses& classes,
                        std::vector<CodePoint>& run, std::string& out);

// Replaces every occurrence of the pattern, as the Replace steps of normalizers and decoders do.
void append_replaced(const Replace& replace, std::string_view text, RegexScratch& scratch, std::string& out);

}  // namespace optimus
