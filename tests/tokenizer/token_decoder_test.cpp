// Conversion from tokens back to text.
#include "tokenizer/token_decoder.h"

#include <gtest/gtest.h>

namespace optimus {
namespace {

using List = std::vector<std::string>;

template <typename... Steps>
std::string decoded(const List& tokens, Steps... steps) {
  TokenDecoder decoder;
  (decoder.add(std::move(steps)), ...);
  return decoder.decode(tokens);
}

TEST(TokenDecoder, JoinsBySpacesWithoutSteps) { EXPECT_EQ(decoded({"a", "b"}), "a b"); }

TEST(TokenDecoder, ByteLevel) {
  EXPECT_EQ(decoded({"He", "llo", "Ġworld", "Ċ"}, ByteLevelDecoder{}), "Hello world\n");
  EXPECT_EQ(decoded({"Ã", "©"}, ByteLevelDecoder{}), "é");
  EXPECT_EQ(decoded({"Ã"}, ByteLevelDecoder{}), "\ufffd");
  EXPECT_EQ(decoded({"a b", "中"}, ByteLevelDecoder{}), "a b中");  // not in the alphabet: unchanged
  EXPECT_EQ(decoded({}, ByteLevelDecoder{}), "");
}

TEST(TokenDecoder, WordPiece) {
  EXPECT_EQ(decoded({"un", "##aff", "##able", "run", "!"}, WordPieceDecoder{"##", true}), "unaffable run!");
  EXPECT_EQ(decoded({"##x", "y", "."}, WordPieceDecoder{"##", false}), "##x y .");
  EXPECT_EQ(decoded({"do", "n't"}, WordPieceDecoder{"##", true}), "don't");
}

TEST(TokenDecoder, Metaspace) {
  EXPECT_EQ(decoded({"▁Hey", "▁man", "▁"}, MetaspaceDecoder{0x2581, true}), "Hey man ");
  EXPECT_EQ(decoded({"▁Hey"}, MetaspaceDecoder{0x2581, false}), " Hey");
}

TEST(TokenDecoder, Llama2) {
  const auto decode = [](const List& tokens) {
    return decoded(tokens, Replace{std::string("▁"), " "}, ByteFallbackDecoder{}, FuseDecoder{},
                   StripDecoder{' ', 1, 0});
  };
  EXPECT_EQ(decode({"▁Hey", "▁▁man"}), "Hey  man");
  EXPECT_EQ(decode({"<0xC3>", "<0xA9>", "x", "<0xC3>", "<0xC3>"}), "éx\ufffd\ufffd");
  EXPECT_EQ(decode({"<0xZZ>", "<0x4>"}), "<0xZZ><0x4>");
  EXPECT_EQ(decode({}), "");
}

TEST(TokenDecoder, Strip) {
  EXPECT_EQ(decoded({"__a__"}, StripDecoder{'_', 1, 5}), "_a");
  EXPECT_EQ(decoded({"__"}, StripDecoder{'_', 5, 5}), "");
}

}  // namespace
}  // namespace optimus
