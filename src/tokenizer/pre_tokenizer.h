// Pre-tokenization: splits normalized text into the words that the model encodes. A pre-tokenizer is a list
// of steps. Each step splits a piece into smaller pieces and may change its text. Pieces pass through all
// steps one at a time, so no intermediate list is built. Read next: bpe.h, wordpiece.h.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "tokenizer/fast_split.h"
#include "tokenizer/split_regex.h"
#include "tokenizer/unicode.h"

namespace optimus {

// How a split treats the matches of its pattern.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// Splits with a hand-written implementation of a pattern. The pattern matches the whole text, so all
// behaviors that keep the matches are equivalent.
struct FastSplit {
  FastPattern pattern;
};
struct PatternSplit {
  std::variant<std::string, SplitRegex> pattern;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  // If true, the text between the matches of the pattern is treated as the match.
  bool invert = false;
};
// Splits at every character that belongs to one of the classes `any_of` (see CharClass). Each such character
// is a match.
struct ClassSplit {
  std::uint16_t any_of;
  SplitBehavior behavior;
};
// Splits into runs of \w and runs of characters that are neither \w nor spaces, and removes the spaces.
struct WordSplit {};
// Prepends a space to a piece that does not start with one.
struct PrefixSpace {};
// Replaces each space with the replacement character and splits before each replacement.
struct Metaspace {
  enum class Prepend { kFirst, kNever, kAlways };
  std::string replacement;  // one character
  Prepend prepend = Prepend::kAlways;
  bool split = true;
};
using PreTokenizerStep = std::variant<FastSplit, PatternSplit, ClassSplit, WordSplit, PrefixSpace, Metaspace>;

// A reference to the callable that receives the pieces, as callable(piece, readable_end). The callable must
// outlive the call that the sink is passed to. `readable_end` is the end of the readable memory around the
// piece. WordCache::find() uses it to load short words without a byte loop.
class PieceSink {
 public:
  template <typename Callable>
    requires(!std::is_same_v<std::remove_const_t<Callable>, PieceSink>)
  explicit PieceSink(Callable& callable)
      : object_(&callable), call_([](void* object, std::string_view piece, const char* readable_end) {
          (*static_cast<Callable*>(object))(piece, readable_end);
        }) {}
  void operator()(std::string_view piece, const char* readable_end) const {
    call_(object_, piece, readable_end);
  }

 private:
  void* object_;
  void (*call_)(void*, std::string_view, const char*);
};

// Working memory for one thread.
struct PreTokenizerScratch {
  std::vector<std::string> texts;  // indexed by step, for steps that change the text
};

class PreTokenizer {
 public:
  void add(PreTokenizerStep step) { steps_.push_back(std::move(step)); }
  const std::vector<PreTokenizerStep>& steps() const { return steps_; }

  // Passes the non-empty pieces of `text` (valid UTF-8) to `sink` from left to right. `is_text_start` is
  // true if `text` is the beginning of the caller's input.
  void run(std::string_view text, bool is_text_start, const CharClasses& classes,
           PreTokenizerScratch& scratch, RegexScratch& regex_scratch, PieceSink sink) const;

 private:
  std::vector<PreTokenizerStep> steps_;
};

}  // namespace optimus
