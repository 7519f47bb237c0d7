// Regular expressions from tokenizer files, executed by PCRE2 with its just-in-time compiler.
//
// The files are written for the Oniguruma library (Ruby syntax). Constructs that PCRE2 interprets differently
// or does not support are either translated or rejected with a message that names them. The classes of
// characters that are newer than PCRE2's Unicode tables depend on PCRE2. The patterns of GPT-2, Llama 3 and
// Qwen 2 are implemented in fast_split.h instead.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace optimus {

// Translates a pattern to PCRE2 syntax. Throws a UserError that starts with `location`, the place of the
// pattern in the file.
std::string translate_pattern(std::string_view oniguruma, const std::string& location);

// Working memory for matching with any SplitRegex. Each thread needs its own.
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

// A compiled pattern. Several threads may use it at the same time.
class SplitRegex {
 public:
  // Throws a UserError that starts with `location` if the pattern is invalid or not supported.
  SplitRegex(std::string_view pattern, std::string location);
  ~SplitRegex();
  SplitRegex(SplitRegex&&) noexcept;

  struct Match {
    std::size_t begin, end;
  };

  // The first match that begins at or after `from`. `text` must be valid UTF-8. Throws a UserError if
  // matching exceeds a step limit. The limit bounds the time that malicious patterns can take.
  std::optional<Match> find(std::string_view text, std::size_t from, RegexScratch& scratch) const;

  // Calls on_part(begin, end, is_match) for the matches and for the text between them, from left to right. An
  // empty match directly after another match is ignored.
  template <typename OnPart>
  void for_each_part(std::string_view text, RegexScratch& scratch, OnPart&& on_part) const;

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
  std::string location_;
};

template <typename OnPart>
void SplitRegex::for_each_part(std::string_view text, RegexScratch& scratch, OnPart&& on_part) const {
  std::size_t from = 0, covered_end = 0;
  std::optional<std::size_t> last_end;
  while (from <= text.size()) {
    const std::optional<Match> match = find(text, from, scratch);
    if (!match) break;
    if (match->begin == match->end && last_end == match->end) {
      do ++from;  // advance to the next character
      while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xC0) == 0x80);
      continue;
    }
    if (covered_end != match->begin) on_part(covered_end, match->begin, false);
    on_part(match->begin, match->end, true);
    from = covered_end = match->end;
    last_end = match->end;
  }
  if (covered_end != text.size()) on_part(covered_end, text.size(), false);
}

}  // namespace optimus
