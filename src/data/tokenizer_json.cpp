// See tokenizer_json.h. One function for each kind of part; each lists the keys that it knows.
#include "data/tokenizer_json.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "data/tokenizer_document.h"

namespace optimus {
namespace {

constexpr std::size_t kMostSteps = 64;             // in one normalizer, pre-tokenizer or decoder
constexpr std::size_t kLongestReplacement = 1024;  // bytes

void allow_only(const JsonView& view, std::initializer_list<std::string> keys) {
  const std::vector<std::string> known(keys);
  view.allow_only(known);
}

// For lists of one kind: the type must be one that we have.
[[noreturn]] void refuse_type(const JsonView& view, std::string_view known) {
  view.at("type").refuse(fmt::format("one of {}", known));
}

// Calls read(element) for a Sequence's elements (in order, at any depth) or for the part itself.
template <typename Read>
void for_each_step(const JsonView& view, std::string_view list_key, std::size_t& num_steps,
                   const Read& read) {
  if (view.at("type").text() == "Sequence") {
    allow_only(view, {"type", std::string(list_key)});
    for (const JsonView& element : view.at(list_key).elements())
      for_each_step(element, list_key, num_steps, read);
    return;
  }
  if (++num_steps > kMostSteps)
    throw UserError("{}: more than {} steps are not supported", view.where(), kMostSteps);
  read(view);
}

CodePoint one_character(const JsonView& view) {
  const std::string& text = view.text();
  if (text.empty() || decode_char(text.data()).size != static_cast<int>(text.size()))
    view.refuse("one character");
  return decode_char(text.data()).code_point;
}

std::string short_text(const JsonView& view) {
  if (view.text().size() > kLongestReplacement)
    view.refuse(fmt::format("at most {} bytes", kLongestReplacement));
  return view.text();
}

// {"String": "…"} or {"Regex": "…"}.
std::variant<std::string, SplitRegex> read_pattern(const JsonView& view) {
  allow_only(view, {"String", "Regex"});
  if (const auto regex = view.find("Regex")) return SplitRegex(regex->text(), regex->where());
  const JsonView literal = view.at("String");
  if (literal.text().empty()) literal.refuse("a text that is not empty");
  return literal.text();
}

Replace read_replace(const JsonView& view) {
  allow_only(view, {"type", "pattern", "content"});
  return {read_pattern(view.at("pattern")), short_text(view.at("content"))};
}

// ---- normalizer

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
    normalizer.add(Prepend{short_text(view.at("prepend"))});
  } else if (type == "Replace") {
    normalizer.add(read_replace(view));
  } else {
    refuse_type(view, "Sequence, NFC, NFD, NFKC, NFKD, Lowercase, BertNormalizer, Prepend, Replace");
  }
}

void read_normalizer(const JsonView& root, TokenizerParts& parts) {
  const auto view = root.find("normalizer");
  std::size_t num_steps = 0;
  if (view)
    for_each_step(*view, "normalizers", num_steps,
                  [&](const JsonView& step) { read_normalizer_step(step, parts.normalizer); });
}

// ---- pre-tokenizer

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
  append_utf8(one_character(view.at("replacement")), result.replacement);
  result.split = view.boolean_or("split", true);
  const std::string scheme = view.text_or("prepend_scheme", "always");
  if (scheme == "first")
    result.prepend = Metaspace::Prepend::kFirst;
  else if (scheme == "never")
    result.prepend = Metaspace::Prepend::kNever;
  else if (scheme != "always")
    view.at("prepend_scheme").refuse("one of first, never, always");
  if (!view.boolean_or("add_prefix_space", true) && result.prepend != Metaspace::Prepend::kNever)
    view.at("add_prefix_space").refuse("true, because prepend_scheme is not \"never\"");
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

// What the model has to know of the pre-tokenizer.
struct PreTokenizerFacts {
  bool is_byte_level = false;
  bool has_metaspace = false;
};

void read_pre_tokenizer_step(const JsonView& view, TokenizerParts& parts, PreTokenizerFacts& facts) {
  const std::string& type = view.at("type").text();
  if (facts.is_byte_level)
    throw UserError("{}: {} after ByteLevel is not supported", view.where(), in_quotes(type));
  if (type == "ByteLevel") {
    facts.is_byte_level = true;
    read_byte_level(view, parts.pre_tokenizer);
  } else if (type == "Split") {
    parts.pre_tokenizer.add(read_split(view));
  } else if (type == "Metaspace") {
    if (std::exchange(facts.has_metaspace, true))
      throw UserError("{}: a second Metaspace is not supported", view.where());
    const Metaspace metaspace = read_metaspace(view);
    if (metaspace.prepend == Metaspace::Prepend::kFirst && parts.normalizer.may_remove_text())
      throw UserError("{}: prepend_scheme \"first\" after a normalizer that removes text is not supported",
                      view.where());
    parts.pre_tokenizer.add(metaspace);
  } else if (type == "Whitespace") {
    allow_only(view, {"type"});
    parts.pre_tokenizer.add(WordSplit{});
  } else {
    read_class_split(view, parts.pre_tokenizer);
  }
}

PreTokenizerFacts read_pre_tokenizer(const JsonView& root, TokenizerParts& parts) {
  PreTokenizerFacts facts;
  std::size_t num_steps = 0;
  if (const auto view = root.find("pre_tokenizer"))
    for_each_step(*view, "pretokenizers", num_steps,
                  [&](const JsonView& step) { read_pre_tokenizer_step(step, parts, facts); });
  return facts;
}

// ---- model

MergeTable resolve_merges(const MergeList& merges, const Vocabulary& vocabulary, const std::string& source) {
  if (merges.size() > MergeTable::kMostMerges)
    throw UserError("{}: model.merges has {} entries, at most {} are supported", source, merges.size(),
                    MergeTable::kMostMerges);
  MergeTable result;
  result.reserve(merges.size());
  std::string both;
  for (std::size_t i = 0; i < merges.size(); ++i) {
    const auto id_of = [&](std::string_view token) {
      const std::optional<TokenId> id = vocabulary.id_of(token);
      if (!id) throw UserError("{}: model.merges[{}]: {} is not in model.vocab", source, i, in_quotes(token));
      return *id;
    };
    both.assign(merges.left(i)).append(merges.right(i));
    result.add(id_of(merges.left(i)), id_of(merges.right(i)), id_of(both));
  }
  return result;
}

void refuse_unless_empty(const JsonView& view, std::string_view key) {
  if (const auto member = view.find(key); member && !member->text().empty()) member->refuse("empty");
}

Bpe read_bpe(const JsonView& view, const TokenizerDocument& document, const std::string& source,
             const PreTokenizerFacts& facts) {
  allow_only(view, {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                    "fuse_unk", "byte_fallback", "ignore_merges"});
  if (const auto dropout = view.find("dropout"); dropout && dropout->number() != 0)
    dropout->refuse("null: merging by chance is not supported");
  refuse_unless_empty(view, "continuing_subword_prefix");
  refuse_unless_empty(view, "end_of_word_suffix");
  BpeOptions options{.is_byte_level = facts.is_byte_level,
                     .ignore_merges = view.boolean_or("ignore_merges", false),
                     .byte_fallback = view.boolean_or("byte_fallback", false),
                     .fuse_unknown = view.boolean_or("fuse_unk", false)};
  const auto unknown = view.find("unk_token");
  if (unknown) options.unknown = document.vocabulary.id_of(unknown->text());
  Bpe result(document.vocabulary, resolve_merges(document.merges, document.vocabulary, source), options);
  // With a token for every byte nothing is unknown.
  const bool knows_all = result.has_all_bytes() && (options.is_byte_level || options.byte_fallback);
  if (unknown && !options.unknown && !knows_all) unknown->refuse("a token of model.vocab");
  if (options.is_byte_level && options.byte_fallback && !knows_all)
    view.at("byte_fallback").refuse("false, because a ByteLevel vocabulary lacks some bytes");
  return result;
}

WordPiece read_wordpiece(const JsonView& view, const Vocabulary& vocabulary, const PreTokenizerFacts& facts) {
  allow_only(view, {"type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word"});
  if (facts.is_byte_level)
    throw UserError("{}: WordPiece after a ByteLevel pre-tokenizer is not supported", view.where());
  const std::optional<TokenId> unknown = vocabulary.id_of(view.at("unk_token").text());
  if (!unknown) view.at("unk_token").refuse("a token of model.vocab");
  return WordPiece(vocabulary, {.unknown = *unknown,
                                .continuing_prefix = view.at("continuing_subword_prefix").text(),
                                .most_characters = static_cast<std::size_t>(
                                    view.at("max_input_chars_per_word").integer(0, INT32_MAX))});
}

// Files of the library's first years do not say the type.
std::string model_type(const JsonView& view, const TokenizerDocument& document) {
  if (!view.find("type") && document.has_merges) return "BPE";
  if (!view.find("type") && view.find("max_input_chars_per_word")) return "WordPiece";
  const std::string& type = view.at("type").text();
  if (type != "BPE" && type != "WordPiece") refuse_type(view, "BPE, WordPiece");
  return type;
}

void read_model(const JsonView& root, TokenizerDocument& document, const std::string& source,
                const PreTokenizerFacts& facts, TokenizerParts& parts) {
  const JsonView view = root.at("model");
  const std::string type = model_type(view, document);
  if (!document.has_vocabulary) view.at("vocab").refuse("an object of tokens and ids");
  if (!document.has_merges && type == "BPE") view.at("merges").refuse("a list");
  if (type == "BPE")
    parts.model = read_bpe(view, document, source, facts);
  else
    parts.model = read_wordpiece(view, document.vocabulary, facts);
  parts.vocabulary = std::move(document.vocabulary);
}

// ---- added tokens

AddedToken read_added_token(const JsonView& view) {
  allow_only(view, {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
  AddedToken token{.id = static_cast<TokenId>(view.at("id").integer(0, kLargestTokenId)),
                   .content = view.at("content").text(),
                   .pattern = {},
                   .single_word = view.at("single_word").boolean(),
                   .lstrip = view.at("lstrip").boolean(),
                   .rstrip = view.at("rstrip").boolean(),
                   .normalized = view.at("normalized").boolean(),
                   .special = view.at("special").boolean()};
  if (token.content.empty() || token.content.size() > AddedTokenMatcher::kLongestPattern)
    view.at("content").refuse(fmt::format("1 to {} bytes long", AddedTokenMatcher::kLongestPattern));
  return token;
}

// Needs the normalizer and the vocabulary. The library numbers tokens by itself and only warns when the file
// says otherwise; such a file means different things to different readers.
void read_added_tokens(const JsonView& root, TokenizerParts& parts) {
  const auto list = root.find("added_tokens");
  if (!list) return;
  NormalizerScratch scratch;
  RegexScratch regex_scratch;
  auto next_id = static_cast<TokenId>(parts.vocabulary.num_tokens());
  Vocabulary seen;
  for (const JsonView& view : list->elements()) {
    AddedToken token = read_added_token(view);
    const std::optional<TokenId> known = parts.vocabulary.id_of(token.content);
    const TokenId expected = known ? *known : next_id++;
    if (token.id != expected)
      view.at("id").refuse(fmt::format("{}, {}", expected, known ? "as in model.vocab" : "the next free id"));
    if (seen.add(token.content, token.id) != Vocabulary::Added::kYes)
      throw UserError("{}: the token {} or its id {} appears twice", view.where(), in_quotes(token.content),
                      token.id);
    token.pattern = token.content;
    if (token.normalized)
      token.pattern = parts.normalizer.apply(token.content, parts.classes, scratch, regex_scratch);
    if (token.pattern.size() > AddedTokenMatcher::kLongestPattern)
      view.at("content").refuse("shorter once it is normalized");
    AddedTokenMatcher& matcher = token.normalized ? parts.normalized_tokens : parts.raw_tokens;
    if (!matcher.add(token))
      throw UserError("{}: {} and another added token are both {} once normalized", view.where(),
                      in_quotes(token.content), in_quotes(token.pattern));
    parts.added_tokens.push_back(std::move(token));
  }
}

// ---- post-processor

// ["[SEP]", 102]
TokenId read_token_pair(const JsonView& view) {
  const std::vector<JsonView> elements = view.elements();
  if (elements.size() != 2) view.refuse("a token and its id");
  elements[0].text();
  return static_cast<TokenId>(elements[1].integer(0, kLargestTokenId));
}

void read_template(const JsonView& view, TokenizerParts& parts) {
  allow_only(view, {"type", "single", "pair", "special_tokens"});
  bool has_text = false;
  for (const JsonView& piece : view.at("single").elements()) {
    allow_only(piece, {"Sequence", "SpecialToken"});
    if (const auto sequence = piece.find("Sequence")) {
      if (sequence->at("id").text() != "A") sequence->at("id").refuse("A");
      if (std::exchange(has_text, true)) piece.refuse("a SpecialToken: the text comes once");
      continue;
    }
    const JsonView token = view.at("special_tokens").at(piece.at("SpecialToken").at("id").text());
    for (const JsonView& id : token.at("ids").elements())
      (has_text ? parts.after : parts.before).push_back(static_cast<TokenId>(id.integer(0, kLargestTokenId)));
  }
  if (!has_text) view.at("single").refuse("a template with the text (Sequence A) in it");
}

void read_post_processor_step(const JsonView& view, TokenizerParts& parts) {
  const std::string& type = view.at("type").text();
  if (type == "ByteLevel")  // about offsets into the text, which we do not give
    return allow_only(view, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
  if (!parts.before.empty() || !parts.after.empty())
    throw UserError("{}: a second post-processor that adds tokens is not supported", view.where());
  if (type == "TemplateProcessing") {
    read_template(view, parts);
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    allow_only(view, {"type", "sep", "cls", "trim_offsets", "add_prefix_space"});
    parts.before = {read_token_pair(view.at("cls"))};
    parts.after = {read_token_pair(view.at("sep"))};
  } else {
    refuse_type(view, "Sequence, ByteLevel, TemplateProcessing, BertProcessing, RobertaProcessing");
  }
}

void read_post_processor(const JsonView& root, TokenizerParts& parts) {
  std::size_t num_steps = 0;
  if (const auto view = root.find("post_processor"))
    for_each_step(*view, "processors", num_steps,
                  [&](const JsonView& step) { read_post_processor_step(step, parts); });
  const auto is_known = [&](TokenId id) {
    return parts.vocabulary.has(id) || std::any_of(parts.added_tokens.begin(), parts.added_tokens.end(),
                                                   [&](const AddedToken& token) { return token.id == id; });
  };
  for (const std::vector<TokenId>* const ids : {&parts.before, &parts.after})
    for (const TokenId id : *ids)
      if (!is_known(id)) throw UserError("{}: no token has the id {}", root.at("post_processor").where(), id);
}

// ---- decoder

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
    return MetaspaceDecoder{one_character(view.at("replacement")),
                            metaspace.prepend != Metaspace::Prepend::kNever};
  }
  if (type == "ByteFallback" || type == "Fuse") {
    allow_only(view, {"type"});
    return type == "Fuse" ? DecoderStep(FuseDecoder{}) : DecoderStep(ByteFallbackDecoder{});
  }
  if (type == "Strip") {
    allow_only(view, {"type", "content", "start", "stop"});
    return StripDecoder{one_character(view.at("content")),
                        static_cast<std::size_t>(view.at("start").integer(0, INT32_MAX)),
                        static_cast<std::size_t>(view.at("stop").integer(0, INT32_MAX))};
  }
  refuse_type(view, "Sequence, ByteLevel, WordPiece, Metaspace, Replace, ByteFallback, Fuse, Strip");
}

void read_decoder(const JsonView& root, TokenizerParts& parts) {
  std::size_t num_steps = 0;
  if (const auto view = root.find("decoder"))
    for_each_step(*view, "decoders", num_steps,
                  [&](const JsonView& step) { parts.decoder.add(read_decoder_step(step)); });
}

void refuse_unless_null(const JsonView& root, std::string_view key) {
  if (const auto member = root.find(key)) member->refuse("null: documents are encoded whole");
}

}  // namespace

TokenizerParts read_tokenizer_parts(std::string_view json, const std::string& source) {
  TokenizerDocument document = read_tokenizer_document(json, source);
  const JsonView root(document.rest, source);
  allow_only(root, {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                    "post_processor", "decoder", "model"});
  if (const auto version = root.find("version"); version && version->text() != "1.0")
    version->refuse("\"1.0\"");
  refuse_unless_null(root, "truncation");
  refuse_unless_null(root, "padding");
  TokenizerParts parts;
  parts.source_json = json;
  read_normalizer(root, parts);
  const PreTokenizerFacts facts = read_pre_tokenizer(root, parts);
  read_model(root, document, source, facts, parts);
  read_added_tokens(root, parts);
  read_post_processor(root, parts);
  read_decoder(root, parts);
  return parts;
}

}  // namespace optimus
