// Normal forms, BERT's cleaning and replacements.
#include "tokenizer/normalizer.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "base/error.h"

namespace optimus {
namespace {

std::string normalized(NormalizerStep step, std::string_view text) {
  Normalizer normalizer;
  normalizer.add(std::move(step));
  NormalizerScratch scratch;
  RegexScratch regex_scratch;
  return std::string(normalizer.apply(text, CharClasses(), scratch, regex_scratch));
}

TEST(Normalizer, UnicodeForms) {
  EXPECT_EQ(normalized(UnicodeForm::kNfc, "cafe\u0301"), "caf\u00e9");
  EXPECT_EQ(normalized(UnicodeForm::kNfd, "caf\u00e9"), "cafe\u0301");
  EXPECT_EQ(normalized(UnicodeForm::kNfc, "q\u0307\u0323"), "q\u0323\u0307");  // order of marks
  EXPECT_EQ(normalized(UnicodeForm::kNfc, "\u1100\u1161\u11a8"), "\uac01");    // Hangul
  EXPECT_EQ(normalized(UnicodeForm::kNfd, "\uac01"), "\u1100\u1161\u11a8");
  EXPECT_EQ(normalized(UnicodeForm::kNfc, "\u212b\u2126"), "\u00c5\u03a9");  // singletons
  EXPECT_EQ(normalized(UnicodeForm::kNfc, "\u0958"), "\u0915\u093c");        // a composition exclusion
  EXPECT_EQ(normalized(UnicodeForm::kNfc, "\ufb01"), "\ufb01");
  EXPECT_EQ(normalized(UnicodeForm::kNfkc, "\ufb01\u00b2"), "fi2");
  EXPECT_EQ(normalized(UnicodeForm::kNfkd, "\ufb01\u00e9"), "fie\u0301");
  EXPECT_EQ(normalized(UnicodeForm::kNfc, "\u0301a"), "\u0301a");      // no base character to combine with
  EXPECT_EQ(normalized(UnicodeForm::kNfc, "\u1eb9\u0302"), "\u1ec7");  // ẹ + circumflex
}

TEST(Normalizer, StableTextIsNotCopied) {
  Normalizer normalizer;
  normalizer.add(UnicodeForm::kNfc);
  NormalizerScratch scratch;
  RegexScratch regex_scratch;
  const std::string text = "plain, Übung, 中文, кот";
  EXPECT_EQ(normalizer.apply(text, CharClasses(), scratch, regex_scratch).data(), text.data());
}

TEST(Normalizer, LongMarkRunsTakeLinearTime) {
  std::string marks;
  for (int i = 0; i < 200'000; ++i) marks += i % 2 == 0 ? "\u0301" : "\u0323";
  const std::string sorted = normalized(UnicodeForm::kNfc, marks);
  EXPECT_EQ(sorted.size(), marks.size());
  EXPECT_EQ(sorted.substr(0, 4), "\u0323\u0323");
}

TEST(Normalizer, NormalFormsAreFixedPoints) {
  const CharClasses classes;
  const auto character =
      rc::gen::oneOf(rc::gen::inRange<int>('a', 'f'), rc::gen::inRange<int>(0x300, 0x370),
                     rc::gen::inRange<int>(0xC0, 0x250), rc::gen::inRange<int>(0x1100, 0x1200),
                     rc::gen::inRange<int>(0xAC00, 0xB000), rc::gen::inRange<int>(0x900, 0xA00));
  EXPECT_TRUE(rc::check([&] {
    const auto code_points = *rc::gen::container<std::vector<int>>(character);
    std::string text;
    for (const int c : code_points) append_utf8(static_cast<CodePoint>(c), text);
    const std::string nfc = normalized(UnicodeForm::kNfc, text), nfd = normalized(UnicodeForm::kNfd, text);
    RC_ASSERT(normalized(UnicodeForm::kNfc, nfc) == nfc);
    RC_ASSERT(normalized(UnicodeForm::kNfd, nfc) == nfd);
    RC_ASSERT(normalized(UnicodeForm::kNfc, nfd) == nfc);
  }));
}

TEST(Normalizer, Bert) {
  EXPECT_EQ(normalized(BertNormalizer{}, "H\u00c9llo\tW\u00f6rld\r\n"), "hello world  ");
  EXPECT_EQ(normalized(BertNormalizer{}, std::string_view("a\0b\xEF\xBF\xBD", 6)), "ab");
  EXPECT_EQ(normalized(BertNormalizer{}, "x\u00ad\u0085y"), "xy");
  EXPECT_EQ(normalized(BertNormalizer{}, "ab\u4e2d\u6587c"), "ab \u4e2d  \u6587 c");
  EXPECT_EQ(normalized(BertNormalizer{}, "\u0130I\u0131"), "ii\u0131");
  BertNormalizer cased{
      .clean_text = true, .handle_chinese_chars = true, .strip_accents = false, .lowercase = false};
  EXPECT_EQ(normalized(cased, "\u00c9\u4e2dA"), "\u00c9 \u4e2d A");
  cased.clean_text = cased.handle_chinese_chars = false;
  EXPECT_EQ(normalized(cased, "\u4e2d\tA"), "\u4e2d\tA");
}

TEST(Normalizer, LowercasePrependReplace) {
  EXPECT_EQ(normalized(Lowercase{}, "AÉ\u0130"), "aéi\u0307");
  EXPECT_EQ(normalized(Prepend{"▁"}, "a b"), "▁a b");
  EXPECT_EQ(normalized(Prepend{"▁"}, ""), "");
  EXPECT_EQ(normalized(Replace{std::string(" "), "▁"}, " a  b "), "▁a▁▁b▁");
  EXPECT_EQ(normalized(Replace{SplitRegex("[0-9]+", "x"), "#"}, "a12b3"), "a#b#");
}

TEST(Normalizer, RejectsUnboundedDoubling) {
  Normalizer normalizer;
  for (int i = 0; i < 60; ++i) normalizer.add(Replace{std::string("a"), "aa"});
  NormalizerScratch scratch;
  RegexScratch regex_scratch;
  const CharClasses classes;
  EXPECT_THROW(normalizer.apply("aaaa", classes, scratch, regex_scratch), UserError);
}

TEST(Normalizer, ReportsWhetherTextMayBeRemoved) {
  Normalizer normalizer;
  EXPECT_TRUE(normalizer.is_empty());
  normalizer.add(Replace{std::string(" "), "▁"});
  EXPECT_FALSE(normalizer.may_remove_text());
  normalizer.add(Replace{std::string("x"), ""});
  EXPECT_TRUE(normalizer.may_remove_text());
}

}  // namespace
}  // namespace optimus
