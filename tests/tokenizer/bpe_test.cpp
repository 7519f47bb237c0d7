// BPE merging compared with a reference implementation; unknown characters; words of a million letters.
#include "tokenizer/bpe.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>

#include "base/random.h"
#include "tokenizer/byte_alphabet.h"

namespace optimus {
namespace {

using Ids = std::vector<TokenId>;

Vocabulary vocabulary_of(const std::vector<std::string>& tokens) {
  Vocabulary vocabulary;
  for (std::size_t i = 0; i < tokens.size(); ++i) vocabulary.add(tokens[i], static_cast<TokenId>(i));
  return vocabulary;
}

Ids encoded(const Bpe& bpe, std::string_view word) {
  BpeScratch scratch;
  Ids ids;
  bpe.encode(word, scratch, ids);
  return ids;
}

TEST(MergeTable, FindsRanks) {
  MergeTable table;
  for (TokenId i = 0; i < 5'000; ++i) table.add(i, kMaxTokenId - i, i + 7);
  for (TokenId i = 0; i < 5'000; ++i) {
    ASSERT_EQ(table.find(i, kMaxTokenId - i), static_cast<std::uint32_t>(i));
    ASSERT_EQ(table.merged_id(static_cast<std::uint32_t>(i)), i + 7);
    ASSERT_EQ(table.find(i, i), MergeTable::kNone);
  }
  table.add(3, kMaxTokenId - 3, 1);  // added again: the later rank counts
  EXPECT_EQ(table.find(3, kMaxTokenId - 3), 5'000u);
  std::size_t num_pairs = 0;
  table.for_each_pair([&](TokenId left, TokenId right) {
    EXPECT_EQ(left + right, kMaxTokenId);
    ++num_pairs;
  });
  EXPECT_EQ(num_pairs, 5'000u);
}

TEST(Bpe, LowestRankFirstThenLeftmost) {
  const Vocabulary vocabulary = vocabulary_of({"a", "b", "c", "bc", "ab", "aa"});
  MergeTable merges;
  merges.add(1, 2, 3);  // b c
  merges.add(0, 1, 4);  // a b
  merges.add(0, 0, 5);  // a a
  const Bpe bpe(vocabulary, merges, {.is_byte_level = true});
  EXPECT_EQ(encoded(bpe, "abc"), (Ids{0, 3}));
  EXPECT_EQ(encoded(bpe, "ab"), (Ids{4}));
  EXPECT_EQ(encoded(bpe, "aaa"), (Ids{5, 0}));
  EXPECT_EQ(encoded(bpe, ""), (Ids{}));
}

TEST(Bpe, IgnoreMergesUsesWholeWords) {
  const Vocabulary vocabulary = vocabulary_of({"a", "b", "ab", "Ġab"});
  EXPECT_EQ(encoded(Bpe(vocabulary, {}, {.is_byte_level = true}), "ab"), (Ids{0, 1}));
  const Bpe bpe(vocabulary, {}, {.is_byte_level = true, .ignore_merges = true});
  EXPECT_EQ(encoded(bpe, "ab"), (Ids{2}));
  EXPECT_EQ(encoded(bpe, " ab"), (Ids{3}));
  EXPECT_EQ(encoded(bpe, "ba"), (Ids{1, 0}));
}

TEST(Bpe, UnknownCharacters) {
  const Vocabulary vocabulary = vocabulary_of({"a", "b", "[UNK]", "<0xC3>", "<0xA9>"});
  const auto with = [&](bool fuse, std::optional<TokenId> unknown, bool fallback = false) {
    return Bpe(vocabulary, {}, {.byte_fallback = fallback, .fuse_unknown = fuse, .unknown_id = unknown});
  };
  EXPECT_EQ(encoded(with(false, 2), "axyb"), (Ids{0, 2, 2, 1}));
  EXPECT_EQ(encoded(with(true, 2), "axyb"), (Ids{0, 2, 1}));
  EXPECT_EQ(encoded(with(true, std::nullopt), "axyb"), (Ids{0, 1}));
  EXPECT_EQ(encoded(with(true, 2, true), "aéb"), (Ids{0, 3, 4, 1}));
  EXPECT_EQ(encoded(with(true, 2, true), "xé"), (Ids{3, 4, 2}));  // same order as the tokenizers library
  const Bpe bytes(vocabulary, {}, {.is_byte_level = true, .fuse_unknown = true, .unknown_id = 2});
  EXPECT_EQ(encoded(bytes, "axyb"), (Ids{0, 2, 1}));
  EXPECT_FALSE(bytes.has_all_bytes());
}

// Reference implementation: repeatedly finds the best pair by trying all pairs.
Ids reference_encoded(Ids ids, const std::map<std::pair<TokenId, TokenId>, std::pair<int, TokenId>>& merges) {
  while (true) {
    int best = INT32_MAX;
    std::size_t at = 0;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto found = merges.find({ids[i], ids[i + 1]});
      if (found != merges.end() && found->second.first < best) {
        best = found->second.first;
        at = i;
      }
    }
    if (best == INT32_MAX) return ids;
    ids[at] = merges.at({ids[at], ids[at + 1]}).second;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

// Random merges over three letters; the words are shorter and longer than the length above which a heap is
// used.
TEST(Bpe, MatchesReference) {
  for (std::uint64_t round = 0; round < 60; ++round) {
    const RandomKey key = RandomKey(5).derive(round);
    std::vector<std::string> tokens = {"a", "b", "c"};
    MergeTable table;
    std::map<std::pair<TokenId, TokenId>, std::pair<int, TokenId>> merges;
    for (std::uint64_t i = 0; i < 25; ++i) {
      const auto left = static_cast<TokenId>(random_below(key, 2 * i, tokens.size()));
      const auto right = static_cast<TokenId>(random_below(key, 2 * i + 1, tokens.size()));
      const std::string both =
          tokens[static_cast<std::size_t>(left)] + tokens[static_cast<std::size_t>(right)];
      if (std::find(tokens.begin(), tokens.end(), both) != tokens.end() || both.size() > 12) continue;
      merges[{left, right}] = {static_cast<int>(merges.size()), static_cast<TokenId>(tokens.size())};
      table.add(left, right, static_cast<TokenId>(tokens.size()));
      tokens.push_back(both);
    }
    const Bpe bpe(vocabulary_of(tokens), table, {.is_byte_level = true});
    for (std::uint64_t i = 0; i < 60; ++i) {
      std::string word;
      Ids ids;
      for (std::uint64_t n = random_below(key.derive(i), 0, 150); n > 0; --n) {
        ids.push_back(static_cast<TokenId>(random_below(key.derive(i), n, 3)));
        word += tokens[static_cast<std::size_t>(ids.back())];
      }
      ASSERT_EQ(encoded(bpe, word), reference_encoded(ids, merges)) << "round " << round << " word " << word;
    }
  }
}

TEST(Bpe, IndependentPartsMatchWhole) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.push_back(fmt::format("<0x{:02X}>", byte));
  for (const char* token : {"▁", "a", "b", "ab", "▁ab", "▁▁", "é"}) tokens.emplace_back(token);
  const Vocabulary vocabulary = vocabulary_of(tokens);
  const auto id = [&](const char* token) { return *vocabulary.id_of(token); };
  MergeTable merges;
  merges.add(id("a"), id("b"), id("ab"));
  merges.add(id("▁"), id("ab"), id("▁ab"));
  merges.add(id("▁"), id("▁"), id("▁▁"));
  const Bpe bpe(vocabulary, merges, {.byte_fallback = true});
  const std::string text = "▁ab▁▁ab▁baab字é▁▁▁";
  EXPECT_EQ(bpe.independent_prefix(text), std::string("▁ab").size());
  Ids in_parts;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::size_t front = bpe.independent_prefix(rest);
    const Ids ids = encoded(bpe, rest.substr(0, front));
    in_parts.insert(in_parts.end(), ids.begin(), ids.end());
    rest.remove_prefix(front);
  }
  EXPECT_EQ(in_parts, encoded(bpe, text));
  // A merge of byte tokens could cross characters, so the text is not split in that case.
  tokens.emplace_back("<0xE5><0xAD>");
  merges.add(0xE5, 0xAD, static_cast<TokenId>(tokens.size()) - 1);
  EXPECT_EQ(Bpe(vocabulary_of(tokens), merges, {.byte_fallback = true}).independent_prefix(text),
            text.size());
}

TEST(Bpe, MillionLettersWithoutSpaces) {
  std::vector<std::string> tokens = {"a"};
  MergeTable merges;
  for (TokenId i = 0; i < 8; ++i) {
    tokens.push_back(tokens.back() + tokens.back());
    merges.add(i, i, i + 1);
  }
  const Bpe bpe(vocabulary_of(tokens), merges, {.is_byte_level = true});
  const auto start = std::chrono::steady_clock::now();
  const Ids ids = encoded(bpe, std::string(1 << 20, 'a'));
  EXPECT_EQ(ids, Ids((1 << 20) / 256, 8));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

}  // namespace
}  // namespace optimus
