// See pipeline_tokenizer.h.
#include "tokenizer/pipeline_tokenizer.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "tokenizer/word_cache.h"

namespace optimus {
namespace {

// Working memory for one encoding thread.
struct Scratch {
  WordCache cache;
  BpeScratch bpe;
  NormalizerScratch normalizer;
  PreTokenizerScratch pre_tokenizer;
  RegexScratch regex;

  // Whether a very large word or document has enlarged the buffers so much that they should be freed.
  bool is_bloated() const {
    constexpr std::size_t kLargeCapacity = 1 << 20;
    std::size_t num_bytes = normalizer.text.capacity() + normalizer.other_text.capacity();
    for (const std::string& text : pre_tokenizer.texts) num_bytes += text.capacity();
    return bpe.heap.capacity() > kLargeCapacity || bpe.ids.capacity() > kLargeCapacity ||
           num_bytes > 32 * kLargeCapacity;
  }
};

// A pool of unused Scratch objects. Reusing them keeps their caches warm across calls.
class ScratchPool {
 public:
  std::unique_ptr<Scratch> take() {
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        std::unique_ptr<Scratch> scratch = std::move(free_.back());
        free_.pop_back();
        return scratch;
      }
    }
    return std::make_unique<Scratch>();
  }
  void put_back(std::unique_ptr<Scratch> scratch) {
    if (scratch->is_bloated()) return;
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(scratch));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Scratch>> free_;
};

// Encodes one text. An Encoding exists for the duration of one call.
class Encoding {
 public:
  Encoding(const TokenizerParts& parts, Scratch& scratch, std::vector<TokenId>& out)
      : parts_(parts), scratch_(scratch), out_(out) {}

  void encode_text(std::string_view text) {
    parts_.raw_tokens.for_each_part(text, parts_.classes, [&](const AddedTokenMatcher::Part& part) {
      if (part.id)
        out_.push_back(*part.id);
      else
        encode_segment(part.text, part.text.data() == text.data());
    });
  }
  // Receives the words from the pre-tokenizer and encodes them with the model.
  void operator()(std::string_view word, const char* readable_end) {
    if (scratch_.cache.find(word, readable_end, out_)) return;
    if (const auto* bpe = std::get_if<Bpe>(&*parts_.model))
      encode_bpe_word(*bpe, word, readable_end);
    else
      encode_and_cache(word, [&] { std::get<WordPiece>(*parts_.model).encode(word, out_); });
  }

 private:
  void encode_segment(std::string_view text, bool is_text_start) {
    const std::string_view normalized =
        parts_.normalizer.apply(text, parts_.classes, scratch_.normalizer, scratch_.regex);
    parts_.normalized_tokens.for_each_part(
        normalized, parts_.classes, [&](const AddedTokenMatcher::Part& part) {
          if (part.id)
            out_.push_back(*part.id);
          else
            parts_.pre_tokenizer.run(part.text, is_text_start && part.text.data() == normalized.data(),
                                     parts_.classes, scratch_.pre_tokenizer, scratch_.regex,
                                     PieceSink(*this));
        });
  }
  void encode_bpe_word(const Bpe& bpe, std::string_view word, const char* readable_end) {
    while (!word.empty()) {
      const std::string_view part = word.substr(0, bpe.independent_prefix(word));
      word.remove_prefix(part.size());
      if (!scratch_.cache.find(part, readable_end, out_))
        encode_and_cache(part, [&] { bpe.encode(part, scratch_.bpe, out_); });
    }
  }
  template <typename Encode>
  void encode_and_cache(std::string_view word, Encode&& encode) {
    const std::size_t num_before = out_.size();
    encode();
    scratch_.cache.insert(word, std::span(out_).subspan(num_before));
  }

  const TokenizerParts& parts_;
  Scratch& scratch_;
  std::vector<TokenId>& out_;
};

class PipelineTokenizer final : public Tokenizer {
 public:
  explicit PipelineTokenizer(TokenizerParts parts) : parts_(std::move(parts)) {
    vocab_size_ = parts_.vocabulary.end();
    for (const AddedToken& token : parts_.added_tokens) {
      added_tokens_by_id_.emplace(token.id, &token);
      vocab_size_ = std::max<std::int64_t>(vocab_size_, token.id + 1);
      if (token.special) special_texts_.insert(token.content);
    }
  }

  void encode(std::string_view text, std::vector<TokenId>& out) const override {
    if (text.size() > INT32_MAX)
      throw UserError("the text is too long for the tokenizer: {} bytes; at most {} are supported",
                      text.size(), INT32_MAX);
    std::string repaired_text;
    if (!is_valid_utf8(text)) text = repaired_text = repair_utf8(text);
    std::unique_ptr<Scratch> scratch = scratches_.take();
    Encoding(parts_, *scratch, out).encode_text(text);
    scratches_.put_back(std::move(scratch));
  }

  void encode_with_specials(std::string_view text, std::vector<TokenId>& out) const override {
    out.insert(out.end(), parts_.prefix_tokens.begin(), parts_.prefix_tokens.end());
    encode(text, out);
    out.insert(out.end(), parts_.suffix_tokens.begin(), parts_.suffix_tokens.end());
  }

  std::string decode(const std::vector<TokenId>& ids, bool skip_special) const override {
    std::vector<std::string> texts;
    for (const TokenId id : ids) {
      const auto added = added_tokens_by_id_.find(id);
      if (added == added_tokens_by_id_.end() && !parts_.vocabulary.has_token(id)) continue;
      std::string text(added != added_tokens_by_id_.end() ? added->second->pattern
                                                          : parts_.vocabulary.token_of(id));
      if (!skip_special || !special_texts_.contains(text)) texts.push_back(std::move(text));
    }
    return parts_.decoder.decode(std::move(texts));
  }

  std::int64_t vocab_size() const override { return vocab_size_; }

  std::optional<TokenId> id_of(std::string_view token) const override {
    for (const AddedToken& added : parts_.added_tokens)
      if (added.content == token) return added.id;
    return parts_.vocabulary.id_of(token);
  }

  std::optional<TokenId> end_of_document() const override {
    return first_of({"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<｜end▁of▁sentence｜>",
                     "<|im_end|>", "<|eot_id|>", "[SEP]"});
  }
  std::optional<TokenId> mask_token() const override { return first_of({"[MASK]", "<mask>", "<|mask|>"}); }

  bool is_special(TokenId id) const override {
    const auto added = added_tokens_by_id_.find(id);
    return added != added_tokens_by_id_.end() && added->second->special;
  }
  const std::string& source_json() const override { return parts_.source_json; }

 private:
  std::optional<TokenId> first_of(std::initializer_list<std::string_view> names) const {
    for (const std::string_view name : names)
      if (const std::optional<TokenId> id = id_of(name)) return id;
    return std::nullopt;
  }

  TokenizerParts parts_;
  std::unordered_map<TokenId, const AddedToken*> added_tokens_by_id_;
  std::unordered_set<std::string> special_texts_;
  std::int64_t vocab_size_ = 0;
  mutable ScratchPool scratches_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_pipeline_tokenizer(TokenizerParts parts) {
  ensure(parts.model.has_value(), "the tokenizer has no model");
  return std::make_unique<PipelineTokenizer>(std::move(parts));
}

}  // namespace optimus
