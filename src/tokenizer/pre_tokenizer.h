// How a normalized text is cut into the words that the model sees: a list of steps, each of which cuts a
// piece into smaller ones (and may change it). Pieces flow through the steps one by one; nothing is
// collected. Read next: bpe.h, wordpiece.h.
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

// What becomes of the matches of a splitting pattern.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// A pattern known by hand; it covers the text, so all behaviours that keep matches are the same.
struct FastSplit {
  FastPattern pattern;
};
struct PatternSplit {
  std::variant<std::string, SplitRegex> pattern;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;  // what lies between matches counts as the match
};
// Each character of the classes is a match by itself.
struct ClassSplit {
  std::uint16_t any_of;
  SplitBehavior behavior;
};
// Runs of \w, and runs of what is neither \w nor space; spaces vanish.
struct WordSplit {};
// A space in front of a piece that has none.
struct PrefixSpace {};
// Spaces become the replacement character; pieces begin with it.
struct Metaspace {
  enum class Prepend { kFirst, kNever, kAlways };
  std::string replacement;  // one character
  Prepend prepend = Prepend::kAlways;
  bool split = true;
};
using PreTokenizerStep = std::variant<FastSplit, PatternSplit, ClassSplit, WordSplit, PrefixSpace, Metaspace>;

// Who takes the pieces: any callable (piece, readable_end) that outlives the call it is passed to.
// readable_end: how far the memory around the piece may be read, which makes quick look-ups quicker.
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

// One per thread.
struct PreTokenizerScratch {
  std::vector<std::string> texts;  // by step, for steps that change the text
};

class PreTokenizer {
 public:
  void add(PreTokenizerStep step) { steps_.push_back(std::move(step)); }
  const std::vector<PreTokenizerStep>& steps() const { return steps_; }

  // Hands the non-empty pieces of `text` (valid UTF-8) to `sink` from left to right. `is_text_start`: the
  // text is the beginning of what the caller was given.
  void run(std::string_view text, bool is_text_start, const CharClasses& classes,
           PreTokenizerScratch& scratch, RegexScratch& regex_scratch, PieceSink sink) const;

 private:
  std::vector<PreTokenizerStep> steps_;
};

}  // namespace optimus
