// The supported contents of a tokenizer.json, and the messages for unsupported ones. Each case changes one
// field of a valid file.
#include <gtest/gtest.h>

#include "base/error.h"
#include "data/tiny_tokenizers.h"

#include "tokenizer/open_tokenizer.h"

namespace optimus {
namespace {

std::string error_of_text(const std::string& text) {
  try {
    parse_tokenizer(text, "t.json");
  } catch (const UserError& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  return "accepted";
}

// The message for `good` with the value at one place (a JSON pointer) replaced by `value`.
std::string error_of(Json good, const char* place, Json value) {
  good[Json::json_pointer(place)] = std::move(value);
  return error_of_text(good.dump());
}

TEST(TokenizerJson, NotJson) {
  EXPECT_EQ(error_of_text("{\"a\": 1,\n x}"), "t.json: line 2, column 2: not valid JSON at 'x}'");
  EXPECT_EQ(error_of_text(""), "t.json: line 1, column 1: not valid JSON at the end of the text");
  EXPECT_EQ(error_of_text("[]"), "t.json: expected an object, got a list");
  EXPECT_EQ(error_of_text("3"), "t.json: expected an object, got '3'");
  EXPECT_EQ(error_of_text(std::string(101, '[')), "t.json: nested deeper than 100 levels");
  EXPECT_EQ(error_of_text("{}"), "t.json: model is missing");
}

TEST(TokenizerJson, TopLevel) {
  EXPECT_EQ(error_of(hello_json(), "/version", "2.0"), "t.json: version: expected \"1.0\", got '\"2.0\"'");
  EXPECT_EQ(error_of(hello_json(), "/trucation", nullptr),
            "t.json: unknown key 'trucation'; did you mean 'truncation'?");
  // Settings for batches of an inference server; documents are encoded completely in any case.
  EXPECT_EQ(error_of(hello_json(), "/truncation", {{"max_length", 1}}), "accepted");
  EXPECT_EQ(error_of(hello_json(), "/padding", {{"strategy", "Fixed"}}), "accepted");
}

TEST(TokenizerJson, Model) {
  EXPECT_EQ(error_of(hello_json(), "/model/type", "Unigram"),
            "t.json: model.type: expected one of BPE, WordPiece, got '\"Unigram\"'");
  EXPECT_EQ(error_of(hello_json(), "/model", {{"vocab", Json::object()}}), "t.json: model.type is missing");
  EXPECT_EQ(error_of(hello_json(), "/model/dropout", 0.1),
            "t.json: model.dropout: expected null (BPE dropout is not supported), got '0.1'");
  EXPECT_EQ(error_of(hello_json(), "/model/dropout", 0.0), "accepted");
  EXPECT_EQ(error_of(hello_json(), "/model/end_of_word_suffix", "</w>"),
            "t.json: model.end_of_word_suffix: expected an empty string, got '\"</w>\"'");
  EXPECT_EQ(error_of(hello_json(), "/model/continuing_subword_prefix", "##"),
            "t.json: model.continuing_subword_prefix: expected an empty string, got '\"##\"'");
  EXPECT_EQ(error_of(hello_json(), "/model/end_of_word_suffix", ""), "accepted");
  EXPECT_EQ(error_of(hello_json(), "/model/unk_token", "<unk>"), "accepted");  // all bytes are known
  EXPECT_EQ(error_of(llama2_json(), "/model/unk_token", "<none>"), "accepted");
  EXPECT_EQ(error_of(hello_json(), "/model/alpha", 1), "t.json: model: unknown key 'alpha'");
  Json no_fallback = llama2_json();
  no_fallback["model"]["byte_fallback"] = false;
  EXPECT_EQ(error_of(no_fallback, "/model/unk_token", "<none>"),
            "t.json: model.unk_token: expected a token of model.vocab, got '\"<none>\"'");
  EXPECT_EQ(error_of(bert_json(), "/model/unk_token", "<none>"),
            "t.json: model.unk_token: expected a token of model.vocab, got '\"<none>\"'");
  EXPECT_EQ(error_of(bert_json(), "/model/max_input_chars_per_word", -1),
            "t.json: model.max_input_chars_per_word: expected an integer from 0 to 2147483647, got '-1'");
  EXPECT_EQ(error_of(bert_json(), "/pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}),
            "t.json: model: WordPiece after a ByteLevel pre-tokenizer is not supported");
}

TEST(TokenizerJson, InfersTypeOfOldFiles) {
  for (Json json : {hello_json(), bert_json()}) {
    const std::vector<TokenId> expected = encoded(*tokenizer_of(json), "hello, un");
    json["model"].erase("type");
    EXPECT_EQ(encoded(*tokenizer_of(json), "hello, un"), expected);
  }
}

TEST(TokenizerJson, RejectsMalformedTables) {
  EXPECT_EQ(error_of(hello_json(), "/model/vocab", Json::array()),
            "t.json: model.vocab: expected an object that maps tokens to ids, got a list");
  EXPECT_EQ(error_of(hello_json(), "/model/merges", Json::object()),
            "t.json: model.merges: expected a list, got an object");
  EXPECT_EQ(error_of(hello_json(), "/model", {{"type", "BPE"}}), "t.json: model.vocab is missing");
  EXPECT_EQ(error_of(hello_json(), "/model", {{"type", "BPE"}, {"vocab", Json::object()}}),
            "t.json: model.merges is missing");
}

TEST(TokenizerJson, IncompleteBytes) {
  Json json = hello_json();
  json["model"]["vocab"].erase("z");
  json["model"]["byte_fallback"] = true;
  json["added_tokens"] = Json::array();
  EXPECT_EQ(error_of_text(json.dump()),
            "t.json: model.byte_fallback: expected false (a ByteLevel vocabulary lacks some bytes), got "
            "'true'");
}

TEST(TokenizerJson, Vocabulary) {
  const std::string range = ": expected an integer from 0 to 4194302, got ";
  EXPECT_EQ(error_of(hello_json(), "/model/vocab/x", -1),
            "t.json: model.vocab: the id of 'x'" + range + "'-1'");
  EXPECT_EQ(error_of(hello_json(), "/model/vocab/x", 4194303),
            "t.json: model.vocab: the id of 'x'" + range + "'4194303'");
  EXPECT_EQ(error_of(hello_json(), "/model/vocab/x", "1"),
            "t.json: model.vocab: the id of 'x'" + range + "'\"1\"'");
  EXPECT_EQ(error_of(hello_json(), "/model/vocab/x", {1}),
            "t.json: model.vocab: the id of 'x'" + range + "'a list or an object'");
  EXPECT_EQ(error_of(hello_json(), "/model/vocab/x", 65),
            "t.json: model.vocab has the id 65 twice, for 'A' and for 'x'");
  EXPECT_EQ(error_of_text(R"({"model": {"type": "BPE", "vocab": {"a": 0, "a": 1}}})"),
            "t.json: model.vocab has the token 'a' twice");
  EXPECT_EQ(error_of_text(R"({"model": {"type": "BPE", "vocab": {}, "vocab": {}}})"),
            "t.json: model.vocab appears twice");
}

TEST(TokenizerJson, Merges) {
  EXPECT_EQ(error_of(hello_json(), "/model/merges/1", "l q q"),
            "t.json: model.merges[1]: expected two tokens separated by one space, got 'l q q'");
  EXPECT_EQ(error_of(hello_json(), "/model/merges/1", "lq"),
            "t.json: model.merges[1]: expected two tokens separated by one space, got 'lq'");
  EXPECT_EQ(error_of(hello_json(), "/model/merges/1", "l q"),
            "t.json: model.merges[1]: 'lq' is not in model.vocab");
  EXPECT_EQ(error_of(hello_json(), "/model/merges/1", "中 q"),
            "t.json: model.merges[1]: '中' is not in model.vocab");
  for (const Json& bad : {Json(3), Json(nullptr), Json{{"a", 1}}, Json::array({"a"}),
                          Json::array({"a", "b", "c"}), Json::array({"a", 1})})
    EXPECT_EQ(error_of(hello_json(), "/model/merges/1", bad), "t.json: model.merges[1]: expected two strings")
        << bad;
}

TEST(TokenizerJson, Normalizer) {
  EXPECT_EQ(error_of(hello_json(), "/normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", "AA"}}),
            "t.json: normalizer.type: expected one of Sequence, NFC, NFD, NFKC, NFKD, Lowercase, "
            "BertNormalizer, Prepend, "
            "Replace, got '\"Precompiled\"'");
  EXPECT_EQ(error_of(hello_json(), "/normalizer", {{"type", "NFC"}, {"form", 1}}),
            "t.json: normalizer: unknown key 'form'");
  EXPECT_EQ(error_of(hello_json(), "/normalizer", {{"type", "NFC"}}), "accepted");
  EXPECT_EQ(error_of(llama2_json(), "/normalizer/normalizers/1/pattern", {{"String", ""}}),
            "t.json: normalizer.normalizers[1].pattern.String: expected a non-empty string, got '\"\"'");
  EXPECT_EQ(
      error_of(llama2_json(), "/normalizer/normalizers/1/content", std::string(1025, 'x')).substr(0, 77),
      "t.json: normalizer.normalizers[1].content: expected at most 1024 bytes, got '");
  EXPECT_EQ(error_of(llama2_json(), "/normalizer/normalizers/1/pattern", {{"Regex", R"(\w)"}}),
            "t.json: normalizer.normalizers[1].pattern.Regex: the escape \\w in the pattern '\\w' is not "
            "supported");
  Json many = {{"type", "Sequence"}, {"normalizers", Json::array()}};
  for (int i = 0; i < 65; ++i) many["normalizers"].push_back({{"type", "NFC"}});
  EXPECT_EQ(error_of(hello_json(), "/normalizer", many),
            "t.json: normalizer.normalizers[64]: more than 64 steps are not supported");
  EXPECT_EQ(error_of(bert_json(), "/normalizer/lowercase", "yes"),
            "t.json: normalizer.lowercase: expected true or false, got '\"yes\"'");
}

TEST(TokenizerJson, PreTokenizer) {
  EXPECT_EQ(error_of(hello_json(), "/pre_tokenizer", {{"type", "UnicodeScripts"}}),
            "t.json: pre_tokenizer.type: expected one of Sequence, ByteLevel, Split, Metaspace, "
            "BertPreTokenizer, Digits, "
            "Punctuation, Whitespace, WhitespaceSplit, got '\"UnicodeScripts\"'");
  const Json byte_level = hello_json()["pre_tokenizer"],
             digits = {{"type", "Digits"}, {"individual_digits", true}};
  EXPECT_EQ(error_of(hello_json(), "/pre_tokenizer",
                     {{"type", "Sequence"}, {"pretokenizers", {byte_level, digits}}}),
            "t.json: pre_tokenizer.pretokenizers[1]: 'Digits' after ByteLevel is not supported");
  EXPECT_EQ(error_of(hello_json(), "/pre_tokenizer",
                     {{"type", "Sequence"}, {"pretokenizers", {digits, byte_level}}}),
            "accepted");
  const Json split = {
      {"type", "Split"}, {"pattern", {{"Regex", "a"}}}, {"behavior", "Sideways"}, {"invert", false}};
  EXPECT_EQ(error_of(llama2_json(), "/pre_tokenizer", split),
            "t.json: pre_tokenizer.behavior: expected one of Removed, Isolated, MergedWithPrevious, "
            "MergedWithNext, "
            "Contiguous, got '\"Sideways\"'");
  Json metaspace = {{"type", "Metaspace"}, {"replacement", "▁▁"}};
  EXPECT_EQ(error_of(llama2_json(), "/pre_tokenizer", metaspace),
            "t.json: pre_tokenizer.replacement: expected one character, got '\"▁▁\"'");
  metaspace["replacement"] = "▁";
  EXPECT_EQ(error_of(llama2_json(), "/pre_tokenizer",
                     {{"type", "Sequence"}, {"pretokenizers", {metaspace, metaspace}}}),
            "t.json: pre_tokenizer.pretokenizers[1]: a second Metaspace is not supported");
  metaspace["add_prefix_space"] = false;
  EXPECT_EQ(error_of(llama2_json(), "/pre_tokenizer", metaspace),
            "t.json: pre_tokenizer.add_prefix_space: expected true (prepend_scheme is not \"never\"), got "
            "'false'");
  metaspace["add_prefix_space"] = true;
  metaspace["prepend_scheme"] = "last";
  EXPECT_EQ(error_of(llama2_json(), "/pre_tokenizer", metaspace),
            "t.json: pre_tokenizer.prepend_scheme: expected one of first, never, always, got '\"last\"'");
  metaspace["prepend_scheme"] = "first";
  EXPECT_EQ(error_of(llama2_json(), "/pre_tokenizer", metaspace), "accepted");
  EXPECT_EQ(error_of(bert_json(), "/pre_tokenizer", metaspace),
            "t.json: pre_tokenizer: prepend_scheme \"first\" after a normalizer that removes text is not "
            "supported");
}

TEST(TokenizerJson, AddedTokens) {
  EXPECT_EQ(error_of(hello_json(), "/added_tokens/0/id", 999),
            "t.json: added_tokens[0].id: expected 262 (the next free id), got '999'");
  EXPECT_EQ(error_of(bert_json(), "/added_tokens/1/id", 9),
            "t.json: added_tokens[1].id: expected 1 (as in model.vocab), got '9'");
  EXPECT_EQ(error_of(bert_json(), "/added_tokens/1", added_token(0, "[UNK]")),
            "t.json: added_tokens[1]: the token '[UNK]' or its id 0 appears twice");
  EXPECT_EQ(error_of(hello_json(), "/added_tokens/0/content", ""),
            "t.json: added_tokens[0].content: expected 1 to 1024 bytes, got '\"\"'");
  EXPECT_EQ(error_of(hello_json(), "/added_tokens/0/lstrip", nullptr),
            "t.json: added_tokens[0].lstrip: expected true or false, got 'null'");
  Json twins = bert_json();
  for (const auto& [id, content] : {std::pair{18, "Twin"}, std::pair{19, "twin"}}) {
    twins["added_tokens"].push_back(added_token(id, content));
    twins["added_tokens"].back()["normalized"] = true;
  }
  EXPECT_EQ(error_of_text(twins.dump()),
            "t.json: added_tokens[5]: 'twin' and another added token both become 'twin' after normalization");
}

TEST(TokenizerJson, PostProcessor) {
  EXPECT_EQ(
      error_of(bert_json(), "/post_processor/type", "Other"),
      "t.json: post_processor.type: expected one of Sequence, ByteLevel, TemplateProcessing, BertProcessing, "
      "RobertaProcessing, got '\"Other\"'");
  EXPECT_EQ(error_of(bert_json(), "/post_processor/single/1/Sequence/id", "B"),
            "t.json: post_processor.single[1].Sequence.id: expected A, got '\"B\"'");
  EXPECT_EQ(error_of(bert_json(), "/post_processor/single/0/SpecialToken/id", "[X]"),
            "t.json: post_processor.special_tokens.[X] is missing");
  EXPECT_EQ(
      error_of(bert_json(), "/post_processor/single", Json::array()),
      "t.json: post_processor.single: expected a template that contains the text (Sequence A), got a list");
  EXPECT_EQ(error_of(bert_json(), "/post_processor/special_tokens/[CLS]/ids/0", 99),
            "t.json: post_processor: no token has the id 99");
  const Json bert = {{"type", "BertProcessing"}, {"sep", {"[SEP]", 2}}, {"cls", {"[CLS]", 1}}};
  EXPECT_EQ(
      error_of(bert_json(), "/post_processor", {{"type", "Sequence"}, {"processors", {bert, bert}}}),
      "t.json: post_processor.processors[1]: a second post-processor that adds tokens is not supported");
  Json json = bert_json();
  json["post_processor"] = bert;
  std::vector<TokenId> ids;
  tokenizer_of(json)->encode_with_specials("a", ids);
  EXPECT_EQ(ids, (std::vector<TokenId>{1, 17, 2}));
}

TEST(TokenizerJson, Decoder) {
  EXPECT_EQ(error_of(hello_json(), "/decoder/type", "CTC"),
            "t.json: decoder.type: expected one of Sequence, ByteLevel, WordPiece, Metaspace, Replace, "
            "ByteFallback, Fuse, "
            "Strip, got '\"CTC\"'");
  EXPECT_EQ(error_of(llama2_json(), "/decoder/decoders/3/content", ""),
            "t.json: decoder.decoders[3].content: expected one character, got '\"\"'");
}

}  // namespace
}  // namespace optimus
