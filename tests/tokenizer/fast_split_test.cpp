// The hand-written splitters compared with tables and with the regular expressions that they implement.
#include "tokenizer/fast_split.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "base/random.h"
#include "tokenizer/split_regex.h"

namespace optimus {
namespace {

constexpr FastPattern kPatterns[] = {FastPattern::kGpt2, FastPattern::kLlama3, FastPattern::kQwen2};

const CharClasses& classes() {
  static const CharClasses table;
  return table;
}

std::vector<std::string> pieces(FastPattern pattern, const std::string& text) {
  std::vector<std::string> result;
  const char* const end = text.data() + text.size();
  for (const char* at = text.data(); at != end;) {
    const char* const next = piece_end(pattern, at, end, classes());
    result.emplace_back(at, next);
    at = next;
  }
  return result;
}

std::vector<std::string> pieces(const SplitRegex& regex, RegexScratch& scratch, const std::string& text) {
  std::vector<std::string> result;
  regex.for_each_part(text, scratch, [&](std::size_t begin, std::size_t end, bool is_match) {
    result.push_back((is_match ? "" : "unmatched:") + text.substr(begin, end - begin));
  });
  return result;
}

using List = std::vector<std::string>;

TEST(FastSplit, Gpt2) {
  const auto split = [](const std::string& text) { return pieces(FastPattern::kGpt2, text); };
  EXPECT_EQ(split("Hello world's 123abc!?  \n x"),
            (List{"Hello", " world", "'s", " 123", "abc", "!?", "  \n", " x"}));
  EXPECT_EQ(split("we'LL we'll"), (List{"we", "'", "LL", " we", "'ll"}));
  EXPECT_EQ(split("a\n\nb  "), (List{"a", "\n", "\n", "b", "  "}));
  EXPECT_EQ(split(" \u00a0x"), (List{" ", "\u00a0", "x"}));
}

TEST(FastSplit, Llama3AndQwen2) {
  const auto split = [](const std::string& text) { return pieces(FastPattern::kLlama3, text); };
  EXPECT_EQ(split("Hello 12345 we'LL\n\n x!\n\n"),
            (List{"Hello", " ", "123", "45", " we", "'LL", "\n\n", " x", "!\n\n"}));
  EXPECT_EQ(split("\tfoo(bar)"), (List{"\tfoo", "(bar", ")"}));
  EXPECT_EQ(split("a  \n  b"), (List{"a", "  \n", " ", " b"}));
  EXPECT_EQ(split("it'\u017fx 'Re"), (List{"it", "'\u017f", "x", " '", "Re"}));
  EXPECT_EQ(pieces(FastPattern::kQwen2, " 123"), (List{" ", "1", "2", "3"}));
}

TEST(FastSplit, FindsBuiltInPatterns) {
  for (const FastPattern pattern : kPatterns) EXPECT_EQ(find_fast_pattern(regex_of(pattern)), pattern);
  EXPECT_EQ(find_fast_pattern(std::string(regex_of(FastPattern::kGpt2)) + " "), std::nullopt);
}

// PCRE2's tables are older than those of the tokenizers library. Characters that PCRE2 classifies differently
// are excluded from the comparison.
std::vector<CodePoint> comparable_code_points() {
  const SplitRegex letter(R"(\p{L})", "x"), number(R"(\p{N})", "x"), space(R"(\s)", "x");
  RegexScratch scratch;
  std::vector<CodePoint> result;
  for (CodePoint c = 0; c < 0x30000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_utf8(c, text);
    const auto agrees = [&](const SplitRegex& regex, CharClass kind) {
      return regex.find(text, 0, scratch).has_value() == classes().is(c, kind);
    };
    if (agrees(letter, kLetter) && agrees(number, kNumber) && agrees(space, kSpace)) result.push_back(c);
  }
  return result;
}

std::string random_text(RandomKey key, const std::vector<CodePoint>& code_points) {
  static const std::string kFragments[] = {
      " ", "  ", "\n",  "\r\n", "\t", "'s",     "'LL",    "'\u017f", "'re",    "a",      "word", "12",
      "1", "!",  "...", "é",    "中", "\u00a0", "\u3000", "'",       "\u2028", "\u0301", "½"};
  std::string text;
  const auto size = random_below(key, 0, 40);
  for (std::uint64_t i = 1; i <= size; ++i) {
    const std::uint64_t choice = random_below(key, 3 * i, 4);
    if (choice == 0)
      append_utf8(code_points[random_below(key, 3 * i + 1, code_points.size())], text);
    else
      text += kFragments[random_below(key, 3 * i + 1, std::size(kFragments))];
  }
  return text;
}

TEST(FastSplit, MatchesRegularExpression) {
  const std::vector<CodePoint> code_points = comparable_code_points();
  ASSERT_GT(code_points.size(), 180'000u);
  const bool is_long = std::getenv("OPTIMUS_LONG") != nullptr;
  const std::uint64_t num_texts = is_long ? 2'000'000 : 30'000;
  for (const FastPattern pattern : kPatterns) {
    const SplitRegex regex(regex_of(pattern), "x");
    RegexScratch scratch;
    for (std::uint64_t i = 0; i < num_texts; ++i) {
      const std::string text = random_text(RandomKey(17).derive(i), code_points);
      ASSERT_EQ(pieces(pattern, text), pieces(regex, scratch, text)) << "seed 17, text " << i;
    }
  }
}

}  // namespace
}  // namespace optimus
