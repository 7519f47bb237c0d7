// The data structures of the models: vocabulary, trie, byte alphabet and word cache.
#include "tokenizer/vocabulary.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <map>

#include "base/random.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/byte_trie.h"
#include "tokenizer/word_cache.h"

namespace optimus {
namespace {

TEST(Vocabulary, LooksUpBothWays) {
  Vocabulary vocabulary;
  EXPECT_EQ(vocabulary.add("a", 0), Vocabulary::AddResult::kAdded);
  EXPECT_EQ(vocabulary.add("", 5), Vocabulary::AddResult::kAdded);
  EXPECT_EQ(vocabulary.add("a", 7), Vocabulary::AddResult::kDuplicateToken);
  EXPECT_EQ(vocabulary.add("b", 5), Vocabulary::AddResult::kDuplicateId);
  EXPECT_EQ(vocabulary.id_of("a"), 0);
  EXPECT_EQ(vocabulary.id_of(""), 5);
  EXPECT_EQ(vocabulary.id_of("b"), std::nullopt);
  EXPECT_TRUE(vocabulary.has_token(5));
  EXPECT_FALSE(vocabulary.has_token(3));
  EXPECT_FALSE(vocabulary.has_token(-1));
  EXPECT_FALSE(vocabulary.has_token(6));
  EXPECT_EQ(vocabulary.token_of(0), "a");
  EXPECT_EQ(vocabulary.token_of(77), "");
  EXPECT_EQ(vocabulary.end(), 6);
  EXPECT_EQ(vocabulary.num_tokens(), 2u);
}

TEST(Vocabulary, ManyTokens) {
  Vocabulary vocabulary;
  vocabulary.reserve(10);
  for (TokenId id = 0; id < 20'000; ++id)
    ASSERT_EQ(vocabulary.add(fmt::format("t{}", id), id), Vocabulary::AddResult::kAdded);
  for (TokenId id = 0; id < 20'000; ++id) {
    ASSERT_EQ(vocabulary.id_of(fmt::format("t{}", id)), id);
    ASSERT_EQ(vocabulary.token_of(id), fmt::format("t{}", id));
  }
}

TEST(ByteTrie, LongestKey) {
  ByteTrie trie;
  EXPECT_TRUE(trie.insert("ab", 1));
  EXPECT_TRUE(trie.insert("abcd", 2));
  EXPECT_TRUE(trie.insert("##x", 3));
  EXPECT_FALSE(trie.insert("ab", 4));
  EXPECT_EQ(trie.longest("abc")->value, 1);
  EXPECT_EQ(trie.longest("abc")->size, 2u);
  EXPECT_EQ(trie.longest("abcde")->value, 2);
  EXPECT_FALSE(trie.longest("a").has_value());
  EXPECT_FALSE(trie.longest("").has_value());
  EXPECT_EQ(trie.longest("xy", trie.walk("##"))->value, 3);
  EXPECT_EQ(trie.walk("zz"), ByteTrie::kNoNode);
}

TEST(ByteTrie, MatchesLinearSearch) {
  EXPECT_TRUE(rc::check([] {
    const auto letters = rc::gen::container<std::string>(rc::gen::elementOf(std::string("abc")));
    const auto keys = *rc::gen::container<std::vector<std::string>>(rc::gen::nonEmpty(letters));
    const std::string text = *letters;
    ByteTrie trie;
    std::size_t longest = 0;
    for (const std::string& key : keys) {
      trie.insert(key, 1);
      if (text.starts_with(key)) longest = std::max(longest, key.size());
    }
    const auto match = trie.longest(text);
    RC_ASSERT(match.has_value() == (longest > 0));
    if (match) RC_ASSERT(match->size == longest);
  }));
}

// A look-up finds the ids that were inserted last for the word, or nothing; it never returns other ids.
TEST(WordCache, NeverReturnsWrongIds) {
  WordCache cache;
  std::map<std::string, std::vector<TokenId>> truth;
  const RandomKey key(3);
  std::size_t num_found = 0;
  for (std::uint64_t i = 0; i < 300'000; ++i) {
    std::string word(random_below(key, 4 * i, i % 8 == 0 ? 300 : 18) + 1, '\0');
    // few distinct bytes: NULs and repeats
    for (char& c : word) c = static_cast<char>(random_below(key, 4 * i + 1, 3));
    std::vector<TokenId> found = {-7};
    const auto known = truth.find(word);
    const char* const end = word.data() + word.size();
    if (cache.find(word, end, found)) {
      ASSERT_NE(known, truth.end());
      ASSERT_EQ(std::vector<TokenId>(found.begin() + 1, found.end()), known->second);
      ++num_found;
    } else {
      ASSERT_EQ(found.size(), 1u);
      std::vector<TokenId> ids(random_below(key, 4 * i + 2, std::min<std::size_t>(word.size() + 1, 6)));
      for (TokenId& id : ids) id = static_cast<TokenId>(i);
      if (known != truth.end()) ids = known->second;
      truth[word] = ids;
      cache.insert(word, ids);
    }
  }
  EXPECT_GT(num_found, 100'000u);
}

TEST(WordCache, ReadsWideOnlyInBounds) {
  WordCache cache;
  const std::string text = "word and more than sixteen bytes";
  const std::vector<TokenId> ids = {1, 2};
  cache.insert("word", ids);
  std::vector<TokenId> wide, narrow;
  EXPECT_TRUE(cache.find(std::string_view(text).substr(0, 4), text.data() + text.size(), wide));
  const std::string exact = "word";
  EXPECT_TRUE(cache.find(exact, exact.data() + exact.size(), narrow));
  EXPECT_EQ(wide, ids);
  EXPECT_EQ(narrow, ids);
}

TEST(ByteAlphabet, RoundTrips) {
  std::string token, bytes;
  const auto alphabet = byte_alphabet();
  for (std::size_t byte = 0; byte < 256; ++byte) {
    append_utf8(alphabet[byte], token);
    bytes.push_back(static_cast<char>(byte));
  }
  EXPECT_EQ(bytes_of_token(token), bytes);
  EXPECT_EQ(alphabet[' '], U'Ġ');
  EXPECT_EQ(alphabet['\n'], U'Ċ');
  EXPECT_EQ(bytes_of_token("a b"), std::nullopt);
  EXPECT_EQ(bytes_of_token("中"), std::nullopt);
}

}  // namespace
}  // namespace optimus
