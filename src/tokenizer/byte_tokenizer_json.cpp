// Implements byte_tokenizer_json of tokenizer.h.
#include <array>

#include "base/json.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/tokenizer.h"

namespace optimus {

// A byte-level BPE without merges: every byte is a token, and the ids are 0 to 255. Text is split into words
// only so that libraries can cache the words. The split does not change the tokens.
std::string byte_tokenizer_json() {
  const std::unique_ptr<Tokenizer> tokenizer = byte_tokenizer();
  const TokenId end_id = tokenizer->end_of_document().value();
  const std::string end_token = tokenizer->decode({end_id}, false);
  OrderedJson vocabulary = OrderedJson::object();
  constexpr std::array<char32_t, 256> alphabet = byte_alphabet();
  for (std::size_t byte = 0; byte < alphabet.size(); ++byte) {
    std::string character;
    append_utf8(alphabet[byte], character);
    vocabulary[character] = byte;
  }
  const OrderedJson end{{"id", end_id},    {"content", end_token}, {"single_word", false}, {"lstrip", false},
                        {"rstrip", false}, {"normalized", false},  {"special", true}};
  const OrderedJson bytes{
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", true}};
  OrderedJson model{{"type", "BPE"},
                    {"dropout", nullptr},
                    {"unk_token", nullptr},
                    {"continuing_subword_prefix", nullptr},
                    {"end_of_word_suffix", nullptr},
                    {"fuse_unk", false},
                    {"byte_fallback", false},
                    {"ignore_merges", false},
                    {"vocab", std::move(vocabulary)},
                    {"merges", OrderedJson::array()}};
  const OrderedJson document{{"version", "1.0"},          {"truncation", nullptr},
                             {"padding", nullptr},        {"added_tokens", OrderedJson::array({end})},
                             {"normalizer", nullptr},     {"pre_tokenizer", bytes},
                             {"post_processor", nullptr}, {"decoder", bytes},
                             {"model", std::move(model)}};
  return document.dump(2) + "\n";
}

}  // namespace optimus
