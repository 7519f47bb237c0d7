// Implements tokenizer_json.h. There is one function for each kind of part. Each function lists the keys that
// it supports.
#include "tokenizer/tokenizer_json.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "tokenizer/tokenizer_document.h"
#include "tokenizer/tokenizer_json_steps.h"

namespace optimus {
namespace {

MergeTable resolve_merges(const MergeList& merges, const Vocabulary& vocabulary, const std::string& source) {
  if (merges.size() > MergeTable::kMaxMerges)
    throw UserError("{}: model.merges has {} entries; at most {} are supported", source, merges.size(),
                    MergeTable::kMaxMerges);
  MergeTable result;
  result.reserve(merges.size());
  std::string merged_token;
  for (std::size_t i = 0; i < merges.size(); ++i) {
    const auto id_of = [&](std::string_view token) {
      const std::optional<TokenId> id = vocabulary.id_of(token);
      if (!id) throw UserError("{}: model.merges[{}]: {} is not in model.vocab", source, i, in_quotes(token));
      return *id;
    };
    merged_token.assign(merges.left(i)).append(merges.right(i));
    const TokenId left = id_of(merges.left(i)), right = id_of(merges.right(i));
    result.add(left, right, id_of(merged_token));
  }
  return result;
}

void require_empty(const JsonView& view, std::string_view key) {
  if (const auto member = view.find(key); member && !member->text().empty())
    member->refuse("an empty string");
}

Bpe read_bpe(const JsonView& view, const TokenizerDocument& document, const std::string& source,
             bool is_byte_level) {
  allow_only(view, {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                    "fuse_unk", "byte_fallback", "ignore_merges"});
  if (const auto dropout = view.find("dropout"); dropout && dropout->number() != 0)
    dropout->refuse("null (BPE dropout is not supported)");
  require_empty(view, "continuing_subword_prefix");
  require_empty(view, "end_of_word_suffix");
  BpeOptions options{.is_byte_level = is_byte_level,
                     .ignore_merges = view.boolean_or("ignore_merges", false),
                     .byte_fallback = view.boolean_or("byte_fallback", false),
                     .fuse_unknown = view.boolean_or("fuse_unk", false)};
  const auto unknown = view.find("unk_token");
  if (unknown) options.unknown_id = document.vocabulary.id_of(unknown->text());
  Bpe result(document.vocabulary, resolve_merges(document.merges, document.vocabulary, source), options);
  // If every byte has a token, no text is unknown, so unk_token is not needed.
  const bool covers_all_bytes = result.has_all_bytes() && (options.is_byte_level || options.byte_fallback);
  if (unknown && !options.unknown_id && !covers_all_bytes) unknown->refuse("a token of model.vocab");
  if (options.is_byte_level && options.byte_fallback && !covers_all_bytes)
    view.at("byte_fallback").refuse("false (a ByteLevel vocabulary lacks some bytes)");
  return result;
}

WordPiece read_wordpiece(const JsonView& view, const Vocabulary& vocabulary, bool is_byte_level) {
  allow_only(view, {"type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word"});
  if (is_byte_level)
    throw UserError("{}: WordPiece after a ByteLevel pre-tokenizer is not supported", view.location());
  const std::optional<TokenId> unknown = vocabulary.id_of(view.at("unk_token").text());
  if (!unknown) view.at("unk_token").refuse("a token of model.vocab");
  return WordPiece(vocabulary, {.unknown_id = *unknown,
                                .continuing_prefix = view.at("continuing_subword_prefix").text(),
                                .max_characters = static_cast<std::size_t>(
                                    view.at("max_input_chars_per_word").integer(0, INT32_MAX))});
}

// Files from early versions of the tokenizers library do not contain the type.
std::string model_type(const JsonView& view, const TokenizerDocument& document) {
  if (!view.find("type") && document.has_merges) return "BPE";
  if (!view.find("type") && view.find("max_input_chars_per_word")) return "WordPiece";
  const std::string& type = view.at("type").text();
  if (type != "BPE" && type != "WordPiece") refuse_type(view, "BPE, WordPiece");
  return type;
}

void read_model(const JsonView& root, TokenizerDocument& document, const std::string& source,
                bool is_byte_level, TokenizerParts& parts) {
  const JsonView view = root.at("model");
  const std::string type = model_type(view, document);
  if (!document.has_vocabulary) view.at("vocab").refuse("an object that maps tokens to ids");
  if (!document.has_merges && type == "BPE") view.at("merges").refuse("a list");
  if (type == "BPE")
    parts.model = read_bpe(view, document, source, is_byte_level);
  else
    parts.model = read_wordpiece(view, document.vocabulary, is_byte_level);
  parts.vocabulary = std::move(document.vocabulary);
}

AddedToken read_added_token(const JsonView& view) {
  allow_only(view, {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
  AddedToken token{.id = static_cast<TokenId>(view.at("id").integer(0, kMaxTokenId)),
                   .content = view.at("content").text(),
                   .pattern = {},
                   .single_word = view.at("single_word").boolean(),
                   .lstrip = view.at("lstrip").boolean(),
                   .rstrip = view.at("rstrip").boolean(),
                   .normalized = view.at("normalized").boolean(),
                   .special = view.at("special").boolean()};
  if (token.content.empty() || token.content.size() > AddedTokenMatcher::kMaxPatternBytes)
    view.at("content").refuse(fmt::format("1 to {} bytes", AddedTokenMatcher::kMaxPatternBytes));
  return token;
}

// The normalizer and the vocabulary must be read first. The tokenizers library assigns the ids itself and
// only warns if the file specifies different ids. Such files are rejected here, because different readers
// would interpret them differently.
void read_added_tokens(const JsonView& root, TokenizerParts& parts) {
  const auto list = root.find("added_tokens");
  if (!list) return;
  NormalizerScratch scratch;
  RegexScratch regex_scratch;
  auto next_id = static_cast<TokenId>(parts.vocabulary.num_tokens());
  Vocabulary previous_tokens;
  for (const JsonView& view : list->elements()) {
    AddedToken token = read_added_token(view);
    const std::optional<TokenId> known_id = parts.vocabulary.id_of(token.content);
    const TokenId expected = known_id ? *known_id : next_id++;
    if (token.id != expected)
      view.at("id").refuse(
          fmt::format("{} ({})", expected, known_id ? "as in model.vocab" : "the next free id"));
    if (previous_tokens.add(token.content, token.id) != Vocabulary::AddResult::kAdded)
      throw UserError("{}: the token {} or its id {} appears twice", view.location(),
                      in_quotes(token.content), token.id);
    token.pattern = token.content;
    if (token.normalized)
      token.pattern = parts.normalizer.apply(token.content, parts.classes, scratch, regex_scratch);
    if (token.pattern.size() > AddedTokenMatcher::kMaxPatternBytes)
      view.at("content").refuse("a token that is shorter after normalization");
    AddedTokenMatcher& matcher = token.normalized ? parts.normalized_tokens : parts.raw_tokens;
    if (!matcher.add(token))
      throw UserError("{}: {} and another added token both become {} after normalization", view.location(),
                      in_quotes(token.content), in_quotes(token.pattern));
    parts.added_tokens.push_back(std::move(token));
  }
}

// Reads a token and its id: ["[SEP]", 102].
TokenId read_token_pair(const JsonView& view) {
  const std::vector<JsonView> elements = view.elements();
  if (elements.size() != 2) view.refuse("a token and its id");
  elements[0].text();
  return static_cast<TokenId>(elements[1].integer(0, kMaxTokenId));
}

void read_template(const JsonView& view, TokenizerParts& parts) {
  allow_only(view, {"type", "single", "pair", "special_tokens"});
  bool has_text = false;
  for (const JsonView& piece : view.at("single").elements()) {
    allow_only(piece, {"Sequence", "SpecialToken"});
    if (const auto sequence = piece.find("Sequence")) {
      if (sequence->at("id").text() != "A") sequence->at("id").refuse("A");
      if (std::exchange(has_text, true)) piece.refuse("a SpecialToken (Sequence A may appear only once)");
      continue;
    }
    const JsonView token = view.at("special_tokens").at(piece.at("SpecialToken").at("id").text());
    for (const JsonView& id : token.at("ids").elements())
      (has_text ? parts.suffix_tokens : parts.prefix_tokens)
          .push_back(static_cast<TokenId>(id.integer(0, kMaxTokenId)));
  }
  if (!has_text) view.at("single").refuse("a template that contains the text (Sequence A)");
}

void read_post_processor_step(const JsonView& view, TokenizerParts& parts) {
  const std::string& type = view.at("type").text();
  if (type == "ByteLevel")  // affects only text offsets, which this tokenizer does not return
    return allow_only(view, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
  if (!parts.prefix_tokens.empty() || !parts.suffix_tokens.empty())
    throw UserError("{}: a second post-processor that adds tokens is not supported", view.location());
  if (type == "TemplateProcessing") {
    read_template(view, parts);
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    allow_only(view, {"type", "sep", "cls", "trim_offsets", "add_prefix_space"});
    parts.prefix_tokens = {read_token_pair(view.at("cls"))};
    parts.suffix_tokens = {read_token_pair(view.at("sep"))};
  } else {
    refuse_type(view, "Sequence, ByteLevel, TemplateProcessing, BertProcessing, RobertaProcessing");
  }
}

void read_post_processor(const JsonView& root, TokenizerParts& parts) {
  const auto view = root.find("post_processor");
  if (!view) return;
  for (const JsonView& step : steps_of(*view, "processors")) read_post_processor_step(step, parts);
  const auto is_known = [&](TokenId id) {
    return parts.vocabulary.has_token(id) ||
           std::any_of(parts.added_tokens.begin(), parts.added_tokens.end(),
                       [&](const AddedToken& token) { return token.id == id; });
  };
  for (const std::vector<TokenId>* const ids : {&parts.prefix_tokens, &parts.suffix_tokens})
    for (const TokenId id : *ids)
      if (!is_known(id)) throw UserError("{}: no token has the id {}", view->location(), id);
}

}  // namespace

TokenizerParts read_tokenizer_parts(std::string_view json, const std::string& source) {
  TokenizerDocument document = read_tokenizer_document(json, source);
  const JsonView root(document.remainder, source);
  allow_only(root, {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                    "post_processor", "decoder", "model"});
  if (const auto version = root.find("version"); version && version->text() != "1.0")
    version->refuse("\"1.0\"");
  // Truncation and padding are ignored. They are batch settings for inference, whereas this tokenizer always
  // encodes whole documents.
  TokenizerParts parts;
  parts.source_json = json;
  bool is_byte_level = false;
  if (const auto view = root.find("normalizer")) parts.normalizer = read_normalizer(*view);
  if (const auto view = root.find("pre_tokenizer")) {
    PreTokenizerParts pre_tokenizer_parts = read_pre_tokenizer(*view, parts.normalizer);
    parts.pre_tokenizer = std::move(pre_tokenizer_parts.pre_tokenizer);
    is_byte_level = pre_tokenizer_parts.is_byte_level;
  }
  read_model(root, document, source, is_byte_level, parts);
  read_added_tokens(root, parts);
  read_post_processor(root, parts);
  if (const auto view = root.find("decoder")) parts.decoder = read_decoder(*view);
  return parts;
}

}  // namespace optimus
