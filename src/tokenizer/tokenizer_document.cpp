// See tokenizer_document.h.
#include "tokenizer/tokenizer_document.h"

#include <array>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace optimus {
namespace {

constexpr std::size_t kMaxDepth = 100;
constexpr std::size_t kMaxTextBytes = std::size_t{1} << 30;

// Builds the document from the events of the JSON parser.
class DocumentBuilder final : public nlohmann::json_sax<Json> {
 public:
  DocumentBuilder(std::string_view text, const std::string& source) : text_(text), source_(source) {}
  TokenizerDocument take() { return std::move(document_); }

  bool null() override { return add_scalar(nullptr); }
  bool boolean(bool value) override { return add_scalar(value); }
  bool number_float(number_float_t value, const string_t&) override { return add_scalar(value); }
  bool binary(binary_t&) override { return false; }  // does not occur in JSON text

  bool number_integer(number_integer_t value) override {
    if (table_ == Table::kVocab) reject_id(fmt::to_string(value));
    return add_scalar(value);
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (table_ != Table::kVocab) return add_scalar(value);
    if (value > static_cast<number_unsigned_t>(kMaxTokenId)) reject_id(fmt::to_string(value));
    add_token(static_cast<TokenId>(value));
    return true;
  }
  bool string(string_t& value) override {
    if (table_ != Table::kMerges) return add_scalar(std::move(value));
    if (!in_pair_)
      add_merge_text(value);
    else if (num_in_pair_ < 2)
      pair_[num_in_pair_++] = std::move(value);
    else
      reject_merge();
    return true;
  }

  bool start_object(std::size_t) override {
    if (table_ != Table::kNone) reject_nested();
    if (is_model_member("vocab")) return open_table(Table::kVocab, document_.has_vocabulary);
    return open(Json::object());
  }
  bool key(string_t& value) override {
    key_ = std::move(value);
    return true;
  }
  bool end_object() override { return close(); }

  bool start_array(std::size_t) override {
    if (table_ == Table::kMerges && !in_pair_) {
      in_pair_ = true;
      num_in_pair_ = 0;
      return true;
    }
    if (table_ != Table::kNone) reject_nested();
    if (is_model_member("merges")) return open_table(Table::kMerges, document_.has_merges);
    return open(Json::array());
  }
  bool end_array() override {
    if (!in_pair_) return close();
    if (num_in_pair_ != 2) reject_merge();
    document_.merges.add(pair_[0], pair_[1]);
    in_pair_ = false;
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
    parse_json(text_, source_);  // throws an error with the location and the cause
    throw UserError("{}: not valid JSON", source_);
  }

 private:
  enum class Table { kNone, kVocab, kMerges };

  bool is_model_member(std::string_view key) const {
    return open_.size() == 2 && keys_[1] == "model" && open_[1]->is_object() && key_ == key;
  }
  bool open_table(Table table, bool& was_opened) {
    if (std::exchange(was_opened, true)) throw UserError("{}: model.{} appears twice", source_, key_);
    table_ = table;
    return true;
  }
  bool open(Json value) {
    if (open_.size() >= kMaxDepth) throw UserError("{}: nested deeper than {} levels", source_, kMaxDepth);
    Json* const place = append_value(std::move(value));
    keys_.push_back(open_.empty() ? "" : key_);
    open_.push_back(place);
    return true;
  }
  bool close() {
    if (table_ != Table::kNone) {
      table_ = Table::kNone;
    } else {
      open_.pop_back();
      keys_.pop_back();
    }
    return true;
  }
  // Adds the value to the innermost open list or object. The returned pointer is valid as long as that list
  // or object remains the innermost one.
  Json* append_value(Json value) {
    if (open_.empty()) return &(document_.remainder = std::move(value));
    Json& inside = *open_.back();
    if (inside.is_array()) {
      inside.push_back(std::move(value));
      return &inside.back();
    }
    const auto [place, is_new] = inside.emplace(key_, std::move(value));
    if (!is_new) throw UserError("{}: key {} appears twice in one object", source_, in_quotes(key_));
    return &*place;
  }
  bool add_scalar(Json value) {
    if (table_ == Table::kVocab) reject_id(value.dump(-1, ' ', false, Json::error_handler_t::replace));
    if (table_ == Table::kMerges) reject_merge();
    append_value(std::move(value));
    return true;
  }

  void add_token(TokenId id) {
    switch (document_.vocabulary.add(key_, id)) {
      case Vocabulary::AddResult::kAdded:
        return;
      case Vocabulary::AddResult::kDuplicateToken:
        throw UserError("{}: model.vocab has the token {} twice", source_, in_quotes(key_));
      case Vocabulary::AddResult::kDuplicateId:
        throw UserError("{}: model.vocab has the id {} twice, for {} and for {}", source_, id,
                        in_quotes(document_.vocabulary.token_of(id)), in_quotes(key_));
    }
  }
  // Adds a merge in the older notation "left right".
  void add_merge_text(std::string_view text) {
    if (text.starts_with("#version")) return;
    const std::size_t space = text.find(' ');
    if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos)
      throw UserError("{}: model.merges[{}]: expected two tokens separated by one space, got {}", source_,
                      document_.merges.size(), in_quotes(text));
    document_.merges.add(text.substr(0, space), text.substr(space + 1));
  }

  [[noreturn]] void reject_id(const std::string& found) const {
    throw UserError("{}: model.vocab: the id of {}: expected an integer from 0 to {}, got {}", source_,
                    in_quotes(key_), kMaxTokenId, in_quotes(found));
  }
  [[noreturn]] void reject_merge() const {
    throw UserError("{}: model.merges[{}]: expected two strings", source_, document_.merges.size());
  }
  [[noreturn]] void reject_nested() const {
    if (table_ == Table::kMerges) reject_merge();
    reject_id("a list or an object");
  }

  std::string_view text_;
  const std::string& source_;
  TokenizerDocument document_;
  std::vector<Json*> open_;        // the open values, from the whole document to the innermost one
  std::vector<std::string> keys_;  // the key of each open value
  std::string key_;                // the most recent key
  Table table_ = Table::kNone;
  bool in_pair_ = false;
  std::size_t num_in_pair_ = 0;
  std::array<std::string, 2> pair_;
};

}  // namespace

void MergeList::add(std::string_view left, std::string_view right) {
  const auto begin = static_cast<std::uint32_t>(characters_.size());
  const auto middle = begin + static_cast<std::uint32_t>(left.size());
  characters_.append(left).append(right);
  places_.push_back({begin, middle, static_cast<std::uint32_t>(characters_.size())});
}

TokenizerDocument read_tokenizer_document(std::string_view text, const std::string& source) {
  // The limit ensures that offsets in MergeList and Vocabulary fit in 32 bits.
  if (text.size() > kMaxTextBytes)
    throw UserError("{} is too large for a tokenizer: {} bytes (limit {})", source, text.size(),
                    kMaxTextBytes);
  DocumentBuilder builder(text, source);
  Json::sax_parse(text, &builder);
  return builder.take();
}

}  // namespace optimus
