// Matching of added tokens: longest match, surrounding spaces, whole words.
#include "tokenizer/added_tokens.h"

#include <gtest/gtest.h>

#include <chrono>

namespace optimus {
namespace {

// The parts separated by bars; added tokens are shown as <id>.
std::string marked(const std::vector<AddedToken>& tokens, std::string_view text) {
  AddedTokenMatcher matcher;
  for (AddedToken token : tokens) {
    token.pattern = token.content;
    EXPECT_TRUE(matcher.add(token));
  }
  std::string result;
  matcher.for_each_part(text, CharClasses(), [&](const AddedTokenMatcher::Part& part) {
    result += part.id ? fmt::format("<{}>", *part.id) : fmt::format("|{}|", part.text);
  });
  return result;
}

AddedToken token(TokenId id, const std::string& content) {
  AddedToken result;
  result.id = id;
  result.content = content;
  return result;
}

TEST(AddedTokens, LeftmostThenLongest) {
  const std::vector<AddedToken> tokens = {token(1, "<a>"), token(2, "<a><b>"), token(3, "bc"),
                                          token(4, "中")};
  EXPECT_EQ(marked(tokens, "x<a>y"), "|x|<1>|y|");
  EXPECT_EQ(marked(tokens, "<a><b><a>"), "<2><1>");
  EXPECT_EQ(marked(tokens, "a中bcb"), "|a|<4><3>|b|");
  EXPECT_EQ(marked(tokens, "<a"), "|<a|");
  EXPECT_EQ(marked(tokens, ""), "");
  EXPECT_EQ(marked({}, "text"), "|text|");
}

TEST(AddedTokens, StripsSurroundingSpaces) {
  AddedToken left = token(1, "<l>"), right = token(2, "<r>");
  left.lstrip = true;
  right.rstrip = true;
  EXPECT_EQ(marked({left, right}, "a \u3000<l> b"), "|a|<1>| b|");
  EXPECT_EQ(marked({left, right}, "a <r> \n b"), "|a |<2>|b|");
  EXPECT_EQ(marked({left, right}, "<r>  <l>"), "<2><1>");  // the spaces belong to the first token
  EXPECT_EQ(marked({left, right}, "   "), "|   |");
}

TEST(AddedTokens, WholeWords) {
  AddedToken word = token(1, "cat");
  word.single_word = true;
  EXPECT_EQ(marked({word}, "cat cats concat a-cat éat"), "<1>| cats concat a-|<1>| éat|");
  EXPECT_EQ(marked({word}, "écat catɛ́ cat"), "|écat catɛ́ |<1>");
}

TEST(AddedTokens, RejectsDuplicatePattern) {
  AddedTokenMatcher matcher;
  AddedToken first = token(1, "AB"), second = token(2, "ab"), none = token(3, "x");
  first.pattern = second.pattern = "ab";
  none.pattern = "";
  EXPECT_TRUE(matcher.add(first));
  EXPECT_FALSE(matcher.add(second));
  EXPECT_TRUE(matcher.add(none));
}

TEST(AddedTokens, SpaceTokensTakeLinearTime) {
  AddedToken space = token(1, " ");
  space.lstrip = space.rstrip = true;
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(marked({space}, std::string(300'000, ' ')).size(), 900'000u);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

}  // namespace
}  // namespace optimus
