// Text shown token by token equals the text of all tokens and contains no terminal control characters.
#include "data/text_stream.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "data/tiny_tokenizers.h"
#include "tokenizer/unicode.h"

namespace optimus {
namespace {

std::string streamed(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  TextStream stream(tokenizer);
  std::string all;
  for (const TokenId id : ids) {
    const std::string piece = stream.push(id);
    EXPECT_TRUE(is_valid_utf8(piece));
    all += piece;
  }
  return all + stream.finish();
}

TEST(TextStream, EmitsWholeCharacters) {
  const auto bytes = byte_tokenizer();
  TextStream stream(*bytes);
  EXPECT_EQ(stream.push('a'), "a");
  EXPECT_EQ(stream.push(0xE2), "");
  EXPECT_EQ(stream.push(0x9C), "");
  EXPECT_EQ(stream.push(0x93), "\u2713");
  EXPECT_EQ(stream.push(256), "");
  EXPECT_EQ(stream.push(0xC3), "");
  EXPECT_EQ(stream.push('('), "\uFFFD(");
  EXPECT_EQ(stream.push(0xC3), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
  EXPECT_EQ(stream.finish(), "");
}

TEST(TextStream, PiecesConcatenateToWholeText) {
  const std::string text = "hello  héllo w\u00f6rld \u6f22\u5b57 \U0001F600, \"hello\"\tand\nmore";
  std::vector<std::unique_ptr<Tokenizer>> all;
  all.push_back(byte_tokenizer());
  for (const Json& json : {hello_json(), llama2_json(), bert_json()}) all.push_back(tokenizer_of(json));
  for (const auto& tokenizer : all) {
    const std::vector<TokenId> ids = encoded(*tokenizer, text);
    EXPECT_EQ(streamed(*tokenizer, ids), printable(tokenizer->decode(ids, true)));
  }
}

TEST(TextStream, AnyBytesYieldPrintableText) {
  const auto bytes = byte_tokenizer();
  EXPECT_TRUE(rc::check([&](const std::vector<std::uint8_t>& any) {
    const std::string text = streamed(*bytes, {any.begin(), any.end()});
    RC_ASSERT(is_valid_utf8(text));
    RC_ASSERT(printable(text) == text);
  }));
}

TEST(Printable, RemovesTerminalControls) {
  EXPECT_EQ(printable("a\x1b[31mb\r\x07\x7f\tc\n"), "a[31mb\tc\n");
  EXPECT_EQ(printable("a\xC2\x9B"
                      "31m"),
            "a31m");  // the same escape sequence as one character
  EXPECT_EQ(printable("\xC2\xA0\xFF"), "\xC2\xA0\uFFFD");
}

}  // namespace
}  // namespace optimus
