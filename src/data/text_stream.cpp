// See text_stream.h.
#include "data/text_stream.h"

#include "base/text.h"
#include "tokenizer/unicode.h"

namespace optimus {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
// A character has at most four bytes, and a token has at least one. Therefore more pending tokens than this
// cannot be the start of a character.
constexpr std::size_t kMaxPendingTokens = 8;

bool is_control(CodePoint point) {
  return (point < 0x20 && point != '\n' && point != '\t') || (point >= 0x7F && point < 0xA0);
}

}  // namespace

std::string printable(std::string_view text) {
  const std::string valid = repair_utf8(text);
  std::string result;
  for (std::size_t at = 0; at < valid.size();) {
    const DecodedChar next = decode_char(valid.data() + at);
    if (!is_control(next.code_point)) result.append(valid, at, static_cast<std::size_t>(next.size));
    at += static_cast<std::size_t>(next.size);
  }
  return result;
}

std::string TextStream::push(TokenId id) {
  ids_.push_back(id);
  return take(false);
}

std::string TextStream::take(bool is_last) {
  const auto end_shown = ids_.begin() + static_cast<std::ptrdiff_t>(num_shown_);
  const std::string shown_text = repair_utf8(tokenizer_.decode({ids_.begin(), end_shown}, true));
  const std::string full_text = repair_utf8(tokenizer_.decode(ids_, true));
  const bool may_continue =
      ends_with(full_text, kReplacement) && ids_.size() - num_shown_ < kMaxPendingTokens;
  if (full_text.size() <= shown_text.size() || (may_continue && !is_last)) return "";
  ids_.erase(ids_.begin(), end_shown);
  num_shown_ = ids_.size();
  return printable(std::string_view(full_text).substr(shown_text.size()));
}

}  // namespace optimus
