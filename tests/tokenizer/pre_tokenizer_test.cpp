// Each step of a pre-tokenizer, and sequences of steps.
#include "tokenizer/pre_tokenizer.h"

#include <gtest/gtest.h>

namespace optimus {
namespace {

using List = std::vector<std::string>;

List run(std::vector<PreTokenizerStep> steps, std::string_view text, bool is_text_start = true) {
  PreTokenizer pre_tokenizer;
  for (PreTokenizerStep& step : steps) pre_tokenizer.add(std::move(step));
  PreTokenizerScratch scratch;
  RegexScratch regex_scratch;
  List result;
  auto sink = [&](std::string_view piece, const char* readable_end) {
    EXPECT_LE(piece.data() + piece.size(), readable_end);
    EXPECT_FALSE(piece.empty());
    result.emplace_back(piece);
  };
  pre_tokenizer.run(text, is_text_start, CharClasses(), scratch, regex_scratch, PieceSink(sink));
  return result;
}

List run(PreTokenizerStep step, std::string_view text, bool is_text_start = true) {
  std::vector<PreTokenizerStep> steps;
  steps.push_back(std::move(step));
  return run(std::move(steps), text, is_text_start);
}

List split(SplitBehavior behavior, bool invert = false) {
  return run(PatternSplit{std::string("-"), behavior, invert}, "the-final--countdown-");
}

// The table in the documentation of the tokenizers library, and its inversions.
TEST(PreTokenizer, Behaviours) {
  EXPECT_EQ(split(SplitBehavior::kRemoved), (List{"the", "final", "countdown"}));
  EXPECT_EQ(split(SplitBehavior::kIsolated), (List{"the", "-", "final", "-", "-", "countdown", "-"}));
  EXPECT_EQ(split(SplitBehavior::kMergedWithPrevious), (List{"the-", "final-", "-", "countdown-"}));
  EXPECT_EQ(split(SplitBehavior::kMergedWithNext), (List{"the", "-final", "-", "-countdown", "-"}));
  EXPECT_EQ(split(SplitBehavior::kContiguous), (List{"the", "-", "final", "--", "countdown", "-"}));
  EXPECT_EQ(split(SplitBehavior::kRemoved, true), (List{"-", "-", "-", "-"}));
  EXPECT_EQ(split(SplitBehavior::kMergedWithPrevious, true), (List{"the", "-final", "-", "-countdown", "-"}));
  EXPECT_EQ(run(PatternSplit{SplitRegex("-+", "x"), SplitBehavior::kIsolated, false}, "a--b"),
            (List{"a", "--", "b"}));
}

TEST(PreTokenizer, ClassesAndWords) {
  EXPECT_EQ(run(ClassSplit{kSpace, SplitBehavior::kRemoved}, " a\u3000b\n"), (List{"a", "b"}));
  EXPECT_EQ(run(ClassSplit{kPunctuation, SplitBehavior::kIsolated}, "a!?b"), (List{"a", "!", "?", "b"}));
  EXPECT_EQ(run(ClassSplit{kDigit, SplitBehavior::kContiguous}, "a12b"), (List{"a", "12", "b"}));
  EXPECT_EQ(run(WordSplit{}, "Hey, man! x_1 "), (List{"Hey", ",", "man", "!", "x_1"}));
}

TEST(PreTokenizer, PrefixSpace) {
  EXPECT_EQ(run(PrefixSpace{}, "a"), (List{" a"}));
  EXPECT_EQ(run(PrefixSpace{}, " a"), (List{" a"}));
  EXPECT_EQ(run(PrefixSpace{}, ""), (List{}));
}

TEST(PreTokenizer, MetaspaceSchemes) {
  const auto metaspace = [](Metaspace::Prepend prepend, bool splits) {
    return Metaspace{"▁", prepend, splits};
  };
  using enum Metaspace::Prepend;
  EXPECT_EQ(run(metaspace(kAlways, true), "Hey  man"), (List{"▁Hey", "▁", "▁man"}));
  EXPECT_EQ(run(metaspace(kAlways, false), "Hey man"), (List{"▁Hey▁man"}));
  EXPECT_EQ(run(metaspace(kAlways, true), " Hey"), (List{"▁Hey"}));
  EXPECT_EQ(run(metaspace(kAlways, true), "▁Hey"), (List{"▁Hey"}));
  EXPECT_EQ(run(metaspace(kNever, true), "Hey man"), (List{"Hey", "▁man"}));
  EXPECT_EQ(run(metaspace(kFirst, true), "Hey"), (List{"▁Hey"}));
  EXPECT_EQ(run(metaspace(kFirst, true), "Hey", false), (List{"Hey"}));
}

TEST(PreTokenizer, StepSequences) {
  std::vector<PreTokenizerStep> steps;
  steps.push_back(ClassSplit{kDigit, SplitBehavior::kIsolated});
  steps.push_back(PrefixSpace{});
  steps.push_back(FastSplit{FastPattern::kGpt2});
  EXPECT_EQ(run(std::move(steps), "ab12 cd"), (List{" ab", " 1", " 2", " cd"}));
  std::vector<PreTokenizerStep> first;
  first.push_back(PatternSplit{std::string("-"), SplitBehavior::kRemoved, false});
  first.push_back(Metaspace{"▁", Metaspace::Prepend::kFirst, true});
  EXPECT_EQ(run(std::move(first), "a-b"), (List{"▁a", "b"}));
  EXPECT_EQ(run(std::vector<PreTokenizerStep>{}, "whole text"), (List{"whole text"}));
}

}  // namespace
}  // namespace optimus
