// Greedy matching of the longest pieces.
#include "tokenizer/wordpiece.h"

#include <gtest/gtest.h>

namespace optimus {
namespace {

using Ids = std::vector<TokenId>;

Ids encoded(const std::vector<std::string>& tokens, const WordPieceOptions& options, std::string_view word) {
  Vocabulary vocabulary;
  for (std::size_t i = 0; i < tokens.size(); ++i) vocabulary.add(tokens[i], static_cast<TokenId>(i));
  Ids ids = {-1};
  WordPiece(vocabulary, options).encode(word, ids);
  ids.erase(ids.begin());
  return ids;
}

TEST(WordPiece, LongestFirst) {
  const std::vector<std::string> tokens = {"[UNK]", "un", "##aff", "##able", "##a", "unaf", "é", "##é"};
  // greedy matching takes "unaf", and "fable" has no token
  EXPECT_EQ(encoded(tokens, {}, "unaffable"), (Ids{0}));
  EXPECT_EQ(encoded(tokens, {}, "unaable"), (Ids{1, 4, 3}));
  EXPECT_EQ(encoded(tokens, {}, "éé"), (Ids{6, 7}));
  EXPECT_EQ(encoded(tokens, {}, "xyz"), (Ids{0}));
  EXPECT_EQ(encoded(tokens, {}, "unx"), (Ids{0}));  // the piece that was already found is discarded
  EXPECT_EQ(encoded(tokens, {}, ""), (Ids{}));
}

TEST(WordPiece, LimitCountsCharacters) {
  const std::vector<std::string> tokens = {"[UNK]", "é", "##é"};
  EXPECT_EQ(encoded(tokens, {.max_characters = 3}, "ééé"), (Ids{1, 2, 2}));
  EXPECT_EQ(encoded(tokens, {.max_characters = 2}, "ééé"), (Ids{0}));
}

TEST(WordPiece, OtherPrefixes) {
  EXPECT_EQ(encoded({"[UNK]", "a", "b"}, {.continuing_prefix = ""}, "ab"), (Ids{1, 2}));
  EXPECT_EQ(encoded({"[UNK]", "a", "@@b"}, {.continuing_prefix = "@@"}, "ab"), (Ids{1, 2}));
  EXPECT_EQ(encoded({"[UNK]", "a"}, {.continuing_prefix = "@@"}, "aa"), (Ids{0}));
}

}  // namespace
}  // namespace optimus
