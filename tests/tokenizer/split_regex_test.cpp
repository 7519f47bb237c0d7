// Patterns of tokenizer files, executed by PCRE2.
#include "tokenizer/split_regex.h"

#include <gtest/gtest.h>

#include <chrono>

#include "base/error.h"

namespace optimus {
namespace {

// The text with its matches in brackets.
std::string marked(std::string_view pattern, std::string_view text) {
  const SplitRegex regex(pattern, "x");
  RegexScratch scratch;
  std::string result;
  regex.for_each_part(text, scratch, [&](std::size_t begin, std::size_t end, bool is_match) {
    const std::string part(text.substr(begin, end - begin));
    result += is_match ? "[" + part + "]" : part;
  });
  return result;
}

std::string error_of(std::string_view pattern) {
  try {
    SplitRegex(pattern, "t.json: pattern.Regex");
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(SplitRegex, Finds) {
  EXPECT_EQ(marked("a+", "baab"), "b[aa]b");
  EXPECT_EQ(marked(R"(\p{L}+)", "día 中文 1"), "[día] [中文] 1");
  EXPECT_EQ(marked(R"(\s+(?!\S)|\s+)", "a  b "), "a[ ][ ]b[ ]");
  EXPECT_EQ(marked("(?i:'s)", "X'S'ſ"), "X['S]['ſ]");
  EXPECT_EQ(marked(R"(\p{N}{1,3})", "12345"), "[123][45]");
  EXPECT_EQ(marked(R"([\[\]\-])", "a[-]"), "a[[][-][]]");
  EXPECT_EQ(marked(R"(\s)", "a\u180eb\u3000c"), "a\u180eb[\u3000]c");
  EXPECT_EQ(marked(R"(\S)", "\u180e"), "[\u180e]");
  EXPECT_EQ(marked(R"([^\S ])", "a \u180e\n"), "a \u180e[\n]");
  EXPECT_EQ(marked(R"(\p{Han})", "中、々"), "[中]、[々]");  // the script without its script extensions
  EXPECT_EQ(marked(R"(\p{^L})", "a1"), "a[1]");
}

TEST(SplitRegex, UsesRubyLineSemantics) {
  EXPECT_EQ(marked(R"(\s+$)", "a \nb  "), "a[ ]\nb[  ]");
  EXPECT_EQ(marked("^a", "a\naa"), "[a]\n[a]a");
  EXPECT_EQ(marked("a.", "a\nab"), "a\n[ab]");
}

TEST(SplitRegex, EmptyMatches) {
  EXPECT_EQ(marked("x*", "axxé"), "[]a[xx]é[]");
  EXPECT_EQ(marked("", "é"), "[]é[]");
  EXPECT_EQ(marked("x*", ""), "[]");
}

TEST(SplitRegex, RejectsUnsupportedConstructs) {
  const auto not_supported = [](const std::string& what, const std::string& pattern) {
    return "t.json: pattern.Regex: " + what + " in the pattern '" + pattern + "' is not supported";
  };
  EXPECT_EQ(error_of(R"(\w+)"), not_supported("the escape \\w", R"(\w+)"));
  EXPECT_EQ(error_of(R"(\h)"), not_supported("the escape \\h", R"(\h)"));
  EXPECT_EQ(error_of(R"(a\b)"), not_supported("the escape \\b", R"(a\b)"));
  EXPECT_EQ(error_of(R"((a)\1)"), not_supported("the escape \\1", R"((a)\1)"));
  EXPECT_EQ(error_of("[a&&b]"), not_supported("&& inside […]", "[a&&b]"));
  EXPECT_EQ(error_of("[a[b]]"), not_supported("[ inside […]", "[a[b]]"));
  EXPECT_EQ(error_of("[]a]"), not_supported("[]", "[]a]"));
  EXPECT_EQ(error_of("a{,3}"), not_supported("{,n}", "a{,3}"));
  EXPECT_EQ(error_of("a{1,3}+"), not_supported("{…}+", "a{1,3}+"));
  EXPECT_EQ(error_of("(?m:a.b)"), not_supported("the group (?m:", "(?m:a.b)"));
  EXPECT_EQ(error_of("a(?i)b"), not_supported("the group (?i)", "a(?i)b"));
  EXPECT_EQ(error_of("(*UTF)a"), not_supported("(*", "(*UTF)a"));
  EXPECT_EQ(error_of("a\\"), not_supported("a trailing \\", "a\\"));
  EXPECT_EQ(error_of(R"(\pL)"), not_supported("\\p without {…}", R"(\pL)"));
  EXPECT_NE(error_of("(a"), "accepted");
  EXPECT_NE(error_of(R"(\p{Klingon})"), "accepted");
  EXPECT_NE(error_of(std::string(10'001, 'a')), "accepted");
  EXPECT_EQ(error_of("(?i)a"), "accepted");
}

TEST(SplitRegex, MaliciousPatternsTerminate) {
  const SplitRegex regex("(?:a+)+(?:a+)+[bc]d", "x");
  RegexScratch scratch;
  const std::string text(3000, 'a');
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THROW(regex.find(text + "bxd", 0, scratch), UserError);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  EXPECT_TRUE(regex.find("aaabd", 0, scratch).has_value());  // the scratch remains usable
}

TEST(SplitRegex, LongRunsAreAccepted) {
  const std::string spaces(2'000'000, ' ');
  EXPECT_EQ(marked(R"(\s*[\r\n]+|\s+(?!\S)|\s+)", spaces + "x").size(), spaces.size() + 5);
  EXPECT_EQ(marked(R"((?:ab)+)", spaces + "abab").size(), spaces.size() + 6);
}

}  // namespace
}  // namespace optimus
