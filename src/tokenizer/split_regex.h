// Regular expressions of tokenizer files, run by PCRE2 with its just-in-time compiler.
//
// Files are written for the Oniguruma library (Ruby's dialect). Constructs that mean something else there, or
// nothing, are refused by name; the rest is translated. Letters younger than PCRE2's Unicode tables are
// classed as PCRE2 does. The patterns of GPT-2, Llama 3 and Qwen 2 do not come here: see fast_split.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace optimus {

// The pattern in PCRE2's dialect. `where` names the place in the file for the UserError.
std::string translate_pattern(std::string_view oniguruma, const std::string& where);

// Memory for running any SplitRegex; one per thread.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(RegexScratch&&) noexcept;

 private:
  friend class SplitRegex;
  struct Memory;
  std::unique_ptr<Memory> memory_;
};

// Compiled once, used by any number of threads at once.
class SplitRegex {
 public:
  // Throws UserError that starts with `where` when the pattern is not understood.
  SplitRegex(std::string_view pattern, std::string where);
  ~SplitRegex();
  SplitRegex(SplitRegex&&) noexcept;

  struct Match {
    std::size_t begin, end;
  };

  // The first match that begins at or after `from`. `text` is valid UTF-8. Throws UserError when the pattern
  // needs more steps than a sane one would: time is bounded for hostile patterns too.
  std::optional<Match> find(std::string_view text, std::size_t from, RegexScratch& scratch) const;

  // Calls on_part(begin, end, is_match) for the matches and for what lies between them, from left to right.
  // An empty match right after another match does not count.
  template <typename OnPart>
  void for_each_part(std::string_view text, RegexScratch& scratch, OnPart&& on_part) const;

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
  std::string where_;
};

template <typename OnPart>
void SplitRegex::for_each_part(std::string_view text, RegexScratch& scratch, OnPart&& on_part) const {
  std::size_t from = 0, covered = 0;
  std::optional<std::size_t> last_end;
  while (from <= text.size()) {
    const std::optional<Match> match = find(text, from, scratch);
    if (!match) break;
    if (match->begin == match->end && last_end == match->end) {
      do ++from;  // to the next character
      while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xC0) == 0x80);
      continue;
    }
    if (covered != match->begin) on_part(covered, match->begin, false);
    on_part(match->begin, match->end, true);
    from = covered = match->end;
    last_end = match->end;
  }
  if (covered != text.size()) on_part(covered, text.size(), false);
}

}  // namespace optimus
