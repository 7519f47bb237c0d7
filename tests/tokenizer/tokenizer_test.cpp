// Complete tokenizers: loading, encoding and decoding.
#include "tokenizer/tokenizer.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <fstream>
#include <thread>

#include "base/error.h"
#include "data/tiny_tokenizers.h"

#include "tokenizer/open_tokenizer.h"

namespace optimus {
namespace {

using Ids = std::vector<TokenId>;

TEST(Tokenizer, Bytes) {
  const auto tokenizer = open_tokenizer("bytes");
  EXPECT_EQ(encoded(*tokenizer, "a\xFF"), (Ids{97, 255}));
  EXPECT_EQ(tokenizer->decode({97, 256, 255, 300, -1}, true), "a\xFF");
  EXPECT_EQ(tokenizer->decode({97, 256}, false), "a<|endoftext|>");
  EXPECT_EQ(tokenizer->vocab_size(), 257);
  EXPECT_EQ(tokenizer->end_of_document(), 256);
  EXPECT_EQ(tokenizer->mask_token(), std::nullopt);
  EXPECT_EQ(tokenizer->id_of("a"), 97);
  EXPECT_EQ(tokenizer->id_of("ab"), std::nullopt);
  EXPECT_TRUE(tokenizer->is_special(256));
  EXPECT_EQ(tokenizer->source_json(), "");
}

TEST(Tokenizer, ByteLevelBpe) {
  const Json json = hello_json();
  const auto tokenizer = tokenizer_of(json);
  const auto id = [&](const char* token) { return *tokenizer->id_of(token); };
  EXPECT_EQ(encoded(*tokenizer, "hello hello w"), (Ids{id("hello"), id("Ġhello"), id("Ġw")}));
  EXPECT_EQ(encoded(*tokenizer, "hello<|endoftext|>he"), (Ids{id("hello"), id("<|endoftext|>"), id("he")}));
  EXPECT_EQ(encoded(*tokenizer, "\xC3"), encoded(*tokenizer, "\ufffd"));
  EXPECT_EQ(tokenizer->decode(encoded(*tokenizer, "hello, wörld\n"), true), "hello, wörld\n");
  EXPECT_EQ(tokenizer->decode({id("hello"), id("<|endoftext|>"), 9999, -3}, true), "hello");
  EXPECT_EQ(tokenizer->decode({id("hello"), id("<|endoftext|>")}, false), "hello<|endoftext|>");
  EXPECT_EQ(tokenizer->vocab_size(), 263);
  EXPECT_EQ(tokenizer->end_of_document(), 262);
  EXPECT_TRUE(tokenizer->is_special(262));
  EXPECT_FALSE(tokenizer->is_special(0));
  EXPECT_EQ(tokenizer->source_json(), json.dump());
}

TEST(Tokenizer, BothNotationsOfMerges) {
  Json json = hello_json();
  json["model"]["merges"] = Json::array({pair("h", "e"), pair("l", "l"), pair("he", "ll"), pair("hell", "o"),
                                         pair("Ġ", "hello"), pair("Ġ", "w")});
  EXPECT_EQ(encoded(*tokenizer_of(json), "hello hello"), encoded(*tokenizer_of(hello_json()), "hello hello"));
}

TEST(Tokenizer, EncodeAppends) {
  const auto tokenizer = tokenizer_of(hello_json());
  Ids ids = {7};
  tokenizer->encode("he", ids);
  tokenizer->encode("", ids);
  EXPECT_EQ(ids, (Ids{7, *tokenizer->id_of("he")}));
}

TEST(Tokenizer, BertWordPiece) {
  const auto tokenizer = tokenizer_of(bert_json());
  const auto id = [&](const char* token) { return *tokenizer->id_of(token); };
  EXPECT_EQ(encoded(*tokenizer, "UNaffable, Hello!"),
            (Ids{id("un"), id("##aff"), id("##able"), id(","), id("hello"), id("!")}));
  EXPECT_EQ(encoded(*tokenizer, "É中a"), (Ids{id("e"), id("中"), id("a")}));
  EXPECT_EQ(encoded(*tokenizer, "hello [MASK]!"), (Ids{id("hello"), id("[MASK]"), id("!")}));
  Ids ids;
  tokenizer->encode_with_specials("hello xyz", ids);
  EXPECT_EQ(ids, (Ids{id("[CLS]"), id("hello"), id("[UNK]"), id("[SEP]")}));
  EXPECT_EQ(tokenizer->decode(ids, true), "hello");
  EXPECT_EQ(tokenizer->decode(encoded(*tokenizer, "unaffable, running!"), true), "unaffable, running!");
  EXPECT_EQ(tokenizer->end_of_document(), id("[SEP]"));
  EXPECT_EQ(tokenizer->mask_token(), id("[MASK]"));
}

TEST(Tokenizer, Llama2) {
  const auto tokenizer = tokenizer_of(llama2_json());
  const auto id = [&](const char* token) { return *tokenizer->id_of(token); };
  EXPECT_EQ(encoded(*tokenizer, "ab ab"), (Ids{id("▁ab"), id("▁ab")}));
  EXPECT_EQ(encoded(*tokenizer, "a 中é"),
            (Ids{id("▁"), id("a"), id("▁"), id("<0xE4>"), id("<0xB8>"), id("<0xAD>"), id("é")}));
  EXPECT_EQ(encoded(*tokenizer, "ab</s>ab"), (Ids{id("▁ab"), id("</s>"), id("▁ab")}));
  EXPECT_EQ(tokenizer->decode(encoded(*tokenizer, "ab  中 c"), true), "ab  中 c");
  EXPECT_EQ(tokenizer->end_of_document(), id("</s>"));
}

TEST(Tokenizer, NormalizedAddedTokens) {
  Json json = bert_json();
  Json token = added_token(18, "RuN", false);
  token["normalized"] = true;
  json["added_tokens"].push_back(token);
  const auto tokenizer = tokenizer_of(json);
  EXPECT_EQ(encoded(*tokenizer, "a RÜN a"), (Ids{17, 18, 17}));
  EXPECT_EQ(tokenizer->decode({18}, false), "run");  // same output as the tokenizers library
}

TEST(Tokenizer, ByteLevelRoundTripsUtf8) {
  const auto tokenizer = tokenizer_of(hello_json());
  EXPECT_TRUE(rc::check([&](const std::string& bytes) {
    const std::string text = repair_utf8(bytes);
    const Ids ids = encoded(*tokenizer, text);
    for (const TokenId id : ids) RC_ASSERT(id >= 0 && id < tokenizer->vocab_size());
    RC_ASSERT(tokenizer->decode(ids, false) == text);
    RC_ASSERT(encoded(*tokenizer, bytes) == ids);
  }));
}

// Caches are shared between calls and threads; earlier texts must not influence later ones.
TEST(Tokenizer, ThreadsProduceSameIds) {
  const auto tokenizer = tokenizer_of(hello_json());
  std::vector<std::string> texts;
  for (int i = 0; i < 200; ++i)
    texts.push_back(std::string(static_cast<std::size_t>(i % 40), 'h') + " hello ello w" + std::to_string(i));
  std::vector<Ids> expected;
  for (const std::string& text : texts) expected.push_back(encoded(*tokenizer_of(hello_json()), text));
  std::vector<std::jthread> threads;
  std::atomic<int> num_wrong = 0;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < 1000; ++i) {
        const std::size_t text = (i * 7 + static_cast<std::size_t>(t) * 13) % texts.size();
        if (encoded(*tokenizer, texts[text]) != expected[text]) ++num_wrong;
      }
    });
  threads.clear();
  EXPECT_EQ(num_wrong, 0);
}

TEST(Tokenizer, FilesAndFolders) {
  const Path folder = Path(testing::TempDir()) / "tokenizer_test_files";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "tokenizer.json") << hello_json().dump();
  EXPECT_EQ(load_tokenizer(folder)->vocab_size(), 263);
  EXPECT_EQ(open_tokenizer((folder / "tokenizer.json").string())->vocab_size(), 263);
  try {
    load_tokenizer(folder / "absent.json");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(std::string(error.what()),
              "cannot open " + (folder / "absent.json").string() + ": No such file or directory");
  }
}

}  // namespace
}  // namespace optimus
