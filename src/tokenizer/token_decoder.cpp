// See token_decoder.h.
#include "tokenizer/token_decoder.h"

#include <algorithm>
#include <charconv>

#include "base/text.h"
#include "tokenizer/byte_alphabet.h"

namespace optimus {
namespace {

using Tokens = std::vector<std::string>;

std::string joined(const Tokens& tokens) {
  std::string result;
  for (const std::string& token : tokens) result += token;
  return result;
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  std::string result;
  std::size_t copied_end = 0;
  for (std::size_t at; (at = text.find(from, copied_end)) != std::string::npos; copied_end = at + from.size())
    result.append(text, copied_end, at - copied_end).append(to);
  if (copied_end > 0) text = std::move(result.append(text, copied_end));
}

void apply(const ByteLevelDecoder&, Tokens& tokens) {
  std::string bytes;
  for (const std::string& token : tokens) bytes += bytes_of_token(token).value_or(token);
  tokens = {repair_utf8(bytes)};
}

void apply(const WordPieceDecoder& step, Tokens& tokens) {
  static constexpr std::pair<std::string_view, std::string_view> kCleanup[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0) {
      if (tokens[i].starts_with(step.prefix))
        tokens[i].erase(0, step.prefix.size());
      else
        tokens[i].insert(0, 1, ' ');
    }
    if (!step.cleanup) continue;
    for (const auto& [from, to] : kCleanup) replace_all(tokens[i], from, to);
  }
}

void apply(const MetaspaceDecoder& step, Tokens& tokens) {
  std::string replacement;
  append_utf8(step.replacement, replacement);
  for (std::size_t i = 0; i < tokens.size(); ++i)
    replace_all(tokens[i], replacement, i == 0 && step.drops_first ? "" : " ");
}

std::optional<char> fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  unsigned byte = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
  if (error != std::errc() || end != token.data() + 5) return std::nullopt;
  return static_cast<char>(byte);
}

void apply(const ByteFallbackDecoder&, Tokens& tokens) {
  Tokens result;
  std::string bytes;
  const auto flush = [&] {
    if (bytes.empty()) return;
    if (is_valid_utf8(bytes))
      result.push_back(bytes);
    else
      result.insert(result.end(), bytes.size(), "\xEF\xBF\xBD");
    bytes.clear();
  };
  for (std::string& token : tokens) {
    if (const std::optional<char> byte = fallback_byte(token)) {
      bytes.push_back(*byte);
      continue;
    }
    flush();
    result.push_back(std::move(token));
  }
  flush();
  tokens = std::move(result);
}

void apply(const FuseDecoder&, Tokens& tokens) { tokens = {joined(tokens)}; }

void apply(const StripDecoder& step, Tokens& tokens) {
  std::string content;
  append_utf8(step.content, content);
  for (std::string& token : tokens) {
    std::string_view remainder = token;
    for (std::size_t i = 0; i < step.at_start && remainder.starts_with(content); ++i)
      remainder.remove_prefix(content.size());
    for (std::size_t i = 0; i < step.at_end && remainder.ends_with(content); ++i)
      remainder.remove_suffix(content.size());
    token = std::string(remainder);
  }
}

void apply(const Replace& step, Tokens& tokens) {
  RegexScratch scratch;
  for (std::string& token : tokens) {
    std::string replaced;
    append_replaced(step, token, scratch, replaced);
    token = std::move(replaced);
  }
}

}  // namespace

std::string TokenDecoder::decode(std::vector<std::string> tokens) const {
  if (steps_.empty()) return join(tokens, " ");
  for (const DecoderStep& step : steps_)
    std::visit([&](const auto& decoder) { apply(decoder, tokens); }, step);
  return joined(tokens);
}

}  // namespace optimus
