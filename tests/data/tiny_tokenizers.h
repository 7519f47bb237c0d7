// Tokenizer files with a few tokens, for tests and fuzzers. Each is a complete tokenizer.json as a JSON
// value, so that a test can change one field and serialize it.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/open_tokenizer.h"

namespace optimus {

inline Json added_token(int id, const std::string& content, bool special = true) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

// A merge in the newer notation. (A braced list of two strings would become a JSON object.)
inline Json pair(const char* left, const char* right) { return Json::array({left, right}); }

// All 256 bytes (ids 0-255), then the merges, then "<|endoftext|>". The merges are written in the byte-level
// alphabet.
inline Json byte_level_json(const std::vector<std::pair<std::string, std::string>>& merges) {
  Json vocab = Json::object(), list = Json::array();
  int next = 0;
  for (const char32_t c : byte_alphabet()) {
    std::string token;
    append_utf8(c, token);
    vocab[token] = next++;
  }
  for (const auto& [left, right] : merges) {
    if (!vocab.contains(left + right)) vocab[left + right] = next++;
    list.push_back(left + " " + right);
  }
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", {added_token(next, "<|endoftext|>")}},
          {"normalizer", nullptr},
          {"pre_tokenizer",
           {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"dropout", nullptr}, {"vocab", vocab}, {"merges", list}}}};
}

// Merges that form "hello" (ids 258 … 261), " hello" (262) and " w" (263).
inline Json hello_json() {
  return byte_level_json({{"h", "e"}, {"l", "l"}, {"he", "ll"}, {"hell", "o"}, {"Ġ", "hello"}, {"Ġ", "w"}});
}

// [UNK] [CLS] [SEP] [MASK] and a few word pieces; lower-cases and strips accents.
inline Json bert_json() {
  Json vocab = Json::object();
  int next = 0;
  for (const char* token : {"[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##aff", "##able", "hello", ",", "!",
                            "##s", "é", "e", "中", "run", "##ning", "##n", "a"})
    vocab[token] = next++;
  const auto special = [](const char* name, int id) {
    return Json{{"id", name}, {"ids", {id}}, {"tokens", {name}}};
  };
  return {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens",
       {added_token(0, "[UNK]"), added_token(1, "[CLS]"), added_token(2, "[SEP]"), added_token(3, "[MASK]")}},
      {"normalizer",
       {{"type", "BertNormalizer"},
        {"clean_text", true},
        {"handle_chinese_chars", true},
        {"strip_accents", nullptr},
        {"lowercase", true}}},
      {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
      {"post_processor",
       {{"type", "TemplateProcessing"},
        {"single",
         {{{"SpecialToken", {{"id", "[CLS]"}, {"type_id", 0}}}},
          {{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
          {{"SpecialToken", {{"id", "[SEP]"}, {"type_id", 0}}}}}},
        {"pair", Json::array()},
        {"special_tokens", {{"[CLS]", special("[CLS]", 1)}, {"[SEP]", special("[SEP]", 2)}}}}},
      {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}},
      {"model",
       {{"type", "WordPiece"},
        {"unk_token", "[UNK]"},
        {"continuing_subword_prefix", "##"},
        {"max_input_chars_per_word", 20},
        {"vocab", vocab}}}};
}

// The scheme of Llama 2: characters, ▁ for spaces, a token for each byte. <unk> <s> </s> are 0 1 2, the bytes
// 3 … 258.
inline Json llama2_json() {
  Json vocab = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  int next = 3;
  for (int byte = 0; byte < 256; ++byte) vocab[fmt::format("<0x{:02X}>", byte)] = next++;
  for (const char* token : {"▁", "a", "b", "c", "ab", "▁ab", "▁▁", "é"}) vocab[token] = next++;
  return {{"version", "1.0"},
          {"added_tokens", {added_token(0, "<unk>"), added_token(1, "<s>"), added_token(2, "</s>")}},
          {"normalizer",
           {{"type", "Sequence"},
            {"normalizers",
             {{{"type", "Prepend"}, {"prepend", "▁"}},
              {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}}}}}},
          {"pre_tokenizer", nullptr},
          {"post_processor", nullptr},
          {"decoder",
           {{"type", "Sequence"},
            {"decoders",
             {{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
              {{"type", "ByteFallback"}},
              {{"type", "Fuse"}},
              {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
          {"model",
           {{"type", "BPE"},
            {"unk_token", "<unk>"},
            {"fuse_unk", true},
            {"byte_fallback", true},
            {"vocab", vocab},
            {"merges", Json::array({pair("a", "b"), pair("▁", "ab"), pair("▁", "▁")})}}}};
}

inline std::unique_ptr<Tokenizer> tokenizer_of(const Json& json) {
  return parse_tokenizer(json.dump(), "tiny.json");
}

inline std::vector<TokenId> encoded(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<TokenId> ids;
  tokenizer.encode(text, ids);
  return ids;
}

}  // namespace optimus
