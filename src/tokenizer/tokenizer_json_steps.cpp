// Implements tokenizer_json_steps.h. There is one function for each kind of step. Each function lists the
// keys that it supports.
#include "tokenizer/tokenizer_json_steps.h"

#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace optimus {
namespace {

constexpr std::size_t kMaxSteps = 64;  // limit for each normalizer, pre-tokenizer and decoder
constexpr std::size_t kMaxReplacementBytes = 1024;

CodePoint read_character(const JsonView& view) {
  const std::string& text = view.text();
  if (text.empty() || decode_char(text.data()).size != static_cast<int>(text.size()))
    view.refuse("one character");
  return decode_char(text.data()).code_point;
}

std::string read_short_text(const JsonView& view) {
  if (view.text().size() > kMaxReplacementBytes)
    view.refuse(fmt::format("at most {} bytes", kMaxReplacementBytes));
  return view.text();
}

// Reads a pattern: {"String": "…"} or {"Regex": "…"}.
std::variant<std::string, SplitRegex> read_pattern(const JsonView& view) {
  allow_only(view, {"String", "Regex"});
  if (const auto regex = view.find("Regex")) return SplitRegex(regex->text(), regex->location());
  const JsonView literal = view.at("String");
  if (literal.text().empty()) literal.refuse("a non-empty string");
  return literal.text();
}

Replace read_replace(const JsonView& view) {
  allow_only(view, {"type", "pattern", "content"});
  return {read_pattern(view.at("pattern")), read_short_text(view.at("content"))};
}

void read_normalizer_step(const JsonView& view, Normalizer& normalizer) {
  const std::string& type = view.at("type").text();
  static constexpr std::pair<std::string_view, UnicodeForm> kForms[] = {{"NFC", UnicodeForm::kNfc},
                                                                        {"NFD", UnicodeForm::kNfd},
                                                                        {"NFKC", UnicodeForm::kNfkc},
                                                                        {"NFKD", UnicodeForm::kNfkd}};
  for (const auto& [name, form] : kForms) {
    if (type != name) continue;
    allow_only(view, {"type"});
    return normalizer.add(form);
  }
  if (type == "Lowercase") {
    allow_only(view, {"type"});
    normalizer.add(Lowercase{});
  } else if (type == "BertNormalizer") {
    allow_only(view, {"type", "clean_text", "handle_chinese_chars", "strip_accents", "lowercase"});
    const bool lowercase = view.at("lowercase").boolean();
    normalizer.add(BertNormalizer{.clean_text = view.at("clean_text").boolean(),
                                  .handle_chinese_chars = view.at("handle_chinese_chars").boolean(),
                                  .strip_accents = view.boolean_or("strip_accents", lowercase),
                                  .lowercase = lowercase});
  } else if (type == "Prepend") {
    allow_only(view, {"type", "prepend"});
    normalizer.add(Prepend{read_short_text(view.at("prepend"))});
  } else if (type == "Replace") {
    normalizer.add(read_replace(view));
  } else {
    refuse_type(view, "Sequence, NFC, NFD, NFKC, NFKD, Lowercase, BertNormalizer, Prepend, Replace");
  }
}

SplitBehavior read_behavior(const JsonView& view) {
  static constexpr std::pair<std::string_view, SplitBehavior> kNames[] = {
      {"Removed", SplitBehavior::kRemoved},
      {"Isolated", SplitBehavior::kIsolated},
      {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
      {"MergedWithNext", SplitBehavior::kMergedWithNext},
      {"Contiguous", SplitBehavior::kContiguous}};
  for (const auto& [name, behavior] : kNames)
    if (view.text() == name) return behavior;
  view.refuse("one of Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous");
}

PreTokenizerStep read_split(const JsonView& view) {
  allow_only(view, {"type", "pattern", "behavior", "invert"});
  const SplitBehavior behavior = read_behavior(view.at("behavior"));
  const bool invert = view.at("invert").boolean();
  const bool keeps_matches =
      behavior == SplitBehavior::kIsolated || (behavior == SplitBehavior::kRemoved && invert);
  if (const auto regex = view.at("pattern").find("Regex"); regex && keeps_matches)
    if (const std::optional<FastPattern> fast = find_fast_pattern(regex->text())) return FastSplit{*fast};
  return PatternSplit{read_pattern(view.at("pattern")), behavior, invert};
}

Metaspace read_metaspace(const JsonView& view) {
  allow_only(view, {"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
  Metaspace result;
  append_utf8(read_character(view.at("replacement")), result.replacement);
  result.split = view.boolean_or("split", true);
  const std::string scheme = view.text_or("prepend_scheme", "always");
  if (scheme == "first")
    result.prepend = Metaspace::Prepend::kFirst;
  else if (scheme == "never")
    result.prepend = Metaspace::Prepend::kNever;
  else if (scheme != "always")
    view.at("prepend_scheme").refuse("one of first, never, always");
  if (!view.boolean_or("add_prefix_space", true) && result.prepend != Metaspace::Prepend::kNever)
    view.at("add_prefix_space").refuse("true (prepend_scheme is not \"never\")");
  return result;
}

void read_byte_level(const JsonView& view, PreTokenizer& pre_tokenizer) {
  allow_only(view, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
  if (view.at("add_prefix_space").boolean()) pre_tokenizer.add(PrefixSpace{});
  if (view.boolean_or("use_regex", true)) pre_tokenizer.add(FastSplit{FastPattern::kGpt2});
}

void read_class_split(const JsonView& view, PreTokenizer& pre_tokenizer) {
  const std::string& type = view.at("type").text();
  if (type == "Digits") {
    allow_only(view, {"type", "individual_digits"});
    const bool is_single = view.at("individual_digits").boolean();
    pre_tokenizer.add(ClassSplit{kDigit, is_single ? SplitBehavior::kIsolated : SplitBehavior::kContiguous});
  } else if (type == "Punctuation") {
    allow_only(view, {"type", "behavior"});
    const auto behavior = view.find("behavior");
    pre_tokenizer.add(
        ClassSplit{kPunctuation, behavior ? read_behavior(*behavior) : SplitBehavior::kIsolated});
  } else if (type == "WhitespaceSplit" || type == "BertPreTokenizer") {
    allow_only(view, {"type"});
    pre_tokenizer.add(ClassSplit{kSpace, SplitBehavior::kRemoved});
    if (type == "BertPreTokenizer") pre_tokenizer.add(ClassSplit{kPunctuation, SplitBehavior::kIsolated});
  } else {
    refuse_type(view,
                "Sequence, ByteLevel, Split, Metaspace, BertPreTokenizer, Digits, Punctuation, Whitespace, "
                "WhitespaceSplit");
  }
}

void read_metaspace_step(const JsonView& view, const Normalizer& normalizer, PreTokenizer& pre_tokenizer) {
  for (const PreTokenizerStep& step : pre_tokenizer.steps())
    if (std::holds_alternative<Metaspace>(step))
      throw UserError("{}: a second Metaspace is not supported", view.location());
  const Metaspace metaspace = read_metaspace(view);
  if (metaspace.prepend == Metaspace::Prepend::kFirst && normalizer.may_remove_text())
    throw UserError("{}: prepend_scheme \"first\" after a normalizer that removes text is not supported",
                    view.location());
  pre_tokenizer.add(metaspace);
}

void read_pre_tokenizer_step(const JsonView& view, const Normalizer& normalizer, PreTokenizerParts& parts) {
  const std::string& type = view.at("type").text();
  if (parts.is_byte_level)
    throw UserError("{}: {} after ByteLevel is not supported", view.location(), in_quotes(type));
  if (type == "ByteLevel") {
    parts.is_byte_level = true;
    read_byte_level(view, parts.pre_tokenizer);
  } else if (type == "Split") {
    parts.pre_tokenizer.add(read_split(view));
  } else if (type == "Metaspace") {
    read_metaspace_step(view, normalizer, parts.pre_tokenizer);
  } else if (type == "Whitespace") {
    allow_only(view, {"type"});
    parts.pre_tokenizer.add(WordSplit{});
  } else {
    read_class_split(view, parts.pre_tokenizer);
  }
}

DecoderStep read_decoder_step(const JsonView& view) {
  const std::string& type = view.at("type").text();
  if (type == "Replace") return read_replace(view);
  if (type == "ByteLevel") {
    allow_only(view, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
    return ByteLevelDecoder{};
  }
  if (type == "WordPiece") {
    allow_only(view, {"type", "prefix", "cleanup"});
    return WordPieceDecoder{view.at("prefix").text(), view.at("cleanup").boolean()};
  }
  if (type == "Metaspace") {
    const Metaspace metaspace = read_metaspace(view);
    return MetaspaceDecoder{read_character(view.at("replacement")),
                            metaspace.prepend != Metaspace::Prepend::kNever};
  }
  if (type == "ByteFallback" || type == "Fuse") {
    allow_only(view, {"type"});
    return type == "Fuse" ? DecoderStep(FuseDecoder{}) : DecoderStep(ByteFallbackDecoder{});
  }
  if (type == "Strip") {
    allow_only(view, {"type", "content", "start", "stop"});
    return StripDecoder{read_character(view.at("content")),
                        static_cast<std::size_t>(view.at("start").integer(0, INT32_MAX)),
                        static_cast<std::size_t>(view.at("stop").integer(0, INT32_MAX))};
  }
  refuse_type(view, "Sequence, ByteLevel, WordPiece, Metaspace, Replace, ByteFallback, Fuse, Strip");
}

void collect_steps(const JsonView& view, std::string_view list_key, std::vector<JsonView>& steps) {
  if (view.at("type").text() == "Sequence") {
    allow_only(view, {"type", std::string(list_key)});
    for (const JsonView& element : view.at(list_key).elements()) collect_steps(element, list_key, steps);
    return;
  }
  if (steps.size() == kMaxSteps)
    throw UserError("{}: more than {} steps are not supported", view.location(), kMaxSteps);
  steps.push_back(view);
}

}  // namespace

void allow_only(const JsonView& view, std::initializer_list<std::string> keys) {
  const std::vector<std::string> known_names(keys);
  view.allow_only(known_names);
}

void refuse_type(const JsonView& view, std::string_view known_types) {
  view.at("type").refuse(fmt::format("one of {}", known_types));
}

std::vector<JsonView> steps_of(const JsonView& view, std::string_view list_key) {
  std::vector<JsonView> steps;
  collect_steps(view, list_key, steps);
  return steps;
}

Normalizer read_normalizer(const JsonView& view) {
  Normalizer normalizer;
  for (const JsonView& step : steps_of(view, "normalizers")) read_normalizer_step(step, normalizer);
  return normalizer;
}

PreTokenizerParts read_pre_tokenizer(const JsonView& view, const Normalizer& normalizer) {
  PreTokenizerParts parts;
  for (const JsonView& step : steps_of(view, "pretokenizers"))
    read_pre_tokenizer_step(step, normalizer, parts);
  return parts;
}

TokenDecoder read_decoder(const JsonView& view) {
  TokenDecoder decoder;
  for (const JsonView& step : steps_of(view, "decoders")) decoder.add(read_decoder_step(step));
  return decoder;
}

}  // namespace optimus
