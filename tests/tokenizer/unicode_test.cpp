// UTF-8 repair as in Python, and the classes of some characters.
#include "tokenizer/unicode.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

namespace optimus {
namespace {

const std::string kBad = "\xEF\xBF\xBD";

TEST(Unicode, RepairsLikePython) {
  const std::pair<std::string, std::string> cases[] = {
      {"", ""},
      {"plain", "plain"},
      {"caf\xC3\xA9", "café"},
      {"\xFF", kBad},
      {"\xC3", kBad},      // truncated
      {"\xE2\x82", kBad},  // one replacement, not two
      {"\xF0\x9F\x98", kBad},
      {"\xF0\x9F\x98z", kBad + "z"},
      {"\xED\xA0\x80", kBad + kBad + kBad},  // a surrogate
      {"\xC0\xAF", kBad + kBad},             // overlong
      {"\xE0\x80\x80", kBad + kBad + kBad},
      {"\xF4\x90\x80\x80", kBad + kBad + kBad + kBad},  // above U+10FFFF
      {"\xF8\x88\x80\x80\x80", kBad + kBad + kBad + kBad + kBad},
      {"a\xE2\x28\xA1"
       "b",
       "a" + kBad + "(" + kBad + "b"},
      {std::string("\0x", 2), std::string("\0x", 2)},
  };
  for (const auto& [bytes, repaired] : cases) {
    EXPECT_EQ(repair_utf8(bytes), repaired);
    EXPECT_EQ(is_valid_utf8(bytes), bytes == repaired) << repaired;
    EXPECT_TRUE(is_valid_utf8(repair_utf8(bytes)));
  }
}

TEST(Unicode, CodePointsRoundTrip) {
  std::string text;
  for (CodePoint c = 0; c < kNumCodePoints; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    text.clear();
    append_utf8(c, text);
    ASSERT_TRUE(is_valid_utf8(text)) << static_cast<unsigned>(c);
    ASSERT_EQ(decode_char(text.data()).code_point, c);
    ASSERT_EQ(decode_char(text.data()).size, static_cast<int>(text.size()));
    ASSERT_EQ(decode_last_char("ab" + text).code_point, c);
  }
}

TEST(Unicode, RepairIsIdempotent) {
  EXPECT_TRUE(rc::check([](const std::string& bytes) {
    const std::string once = repair_utf8(bytes);
    RC_ASSERT(is_valid_utf8(once));
    RC_ASSERT(repair_utf8(once) == once);
    RC_ASSERT(is_valid_utf8(bytes) == (once == bytes));
  }));
}

TEST(Unicode, Classes) {
  const CharClasses classes;
  EXPECT_TRUE(classes.is('a', kLetter));
  EXPECT_TRUE(classes.is(U'中', kLetter));
  EXPECT_FALSE(classes.is(U'́', kLetter));
  EXPECT_TRUE(classes.is(U'½', kNumber));
  EXPECT_TRUE(classes.is(0x3000, kSpace));
  EXPECT_FALSE(classes.is(0x180E, kSpace));
  EXPECT_FALSE(classes.is(0x200B, kSpace));
  EXPECT_TRUE(classes.is('_', kWord));
  EXPECT_TRUE(classes.is('$', kPunctuation));
  EXPECT_FALSE(classes.is(U'€', kPunctuation));
  EXPECT_TRUE(classes.is(0xFFFD, kControl));
  EXPECT_TRUE(classes.is(0x301, kAccent));
  EXPECT_TRUE(classes.is(0x1161, kNfcUnstable));
  EXPECT_FALSE(classes.is(U'é', kNfcUnstable));
  EXPECT_TRUE(classes.is(U'é', kNfdUnstable));
  EXPECT_EQ(classes.of(0x10FFFF), classes.of(0x10FFFE));  // the table covers the last code point
}

TEST(Unicode, LowerCase) {
  const auto lower = [](CodePoint c) {
    std::string text;
    append_lower(c, text);
    return text;
  };
  EXPECT_EQ(lower('A'), "a");
  EXPECT_EQ(lower('z'), "z");
  EXPECT_EQ(lower(U'É'), "é");
  EXPECT_EQ(lower(U'Σ'), "σ");
  EXPECT_EQ(lower(0x130), "i\u0307");
  EXPECT_EQ(lower(0x1C89), "\u1C8A");
  EXPECT_EQ(lower(0x10D65), "\U00010D85");
  EXPECT_EQ(lower(U'ß'), "ß");
}

}  // namespace
}  // namespace optimus
