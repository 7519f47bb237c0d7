// Implements generate_text.h.
#include "inference/generate_text.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/hf_folder.h"
#include "data/text_stream.h"
#include "engine/generate.h"
#include "inference/inference.h"
#include "tokenizer/unicode.h"

namespace optimus {
namespace {

constexpr double kDefaultTemperature = 0.8;
constexpr std::int64_t kMaxTokens = 1'000'000'000;

void check_option_ranges(const TextOptions& o) {
  if (o.prompt.has_value() == o.prompt_ids.has_value())
    throw UsageError("pass either --prompt TEXT or --prompt-ids 1,2,3");
  if (o.num_tokens < 1 || o.num_tokens > kMaxTokens)
    throw UsageError("--tokens: expected 1 to 1,000,000,000, got {}", o.num_tokens);
  if (o.is_greedy && (o.temperature || o.top_p))
    throw UsageError("--greedy cannot be combined with --temperature or --top-p");
  if (o.temperature && !(*o.temperature >= 0 && *o.temperature <= 100))
    throw UsageError("--temperature: expected 0 to 100, got {}", *o.temperature);
  if (o.top_p && !(*o.top_p > 0 && *o.top_p <= 1))
    throw UsageError("--top-p: expected more than 0 and at most 1, got {}", *o.top_p);
}

std::vector<std::int64_t> parse_ids(const std::string& list) {
  std::vector<std::int64_t> ids;
  for (const std::string& word : split(list, ',')) {
    const std::string_view digits = trim(word);
    const bool is_number = !digits.empty() && digits.size() < 10 &&
                           digits.find_first_not_of("0123456789") == std::string_view::npos;
    if (!is_number)
      throw UsageError("--prompt-ids: {} is not a token id; expected a list such as 1,2,3", in_quotes(word));
    ids.push_back(std::stoll(std::string(digits)));
  }
  return ids;
}

// An empty prompt starts at the beginning of a document, after the token that ends the previous one.
std::vector<std::int64_t> prompt_of(const TextOptions& options, const Tokenizer& tokenizer) {
  if (options.prompt_ids) return parse_ids(*options.prompt_ids);
  std::vector<TokenId> ids;
  tokenizer.encode_with_specials(*options.prompt, ids);
  if (const auto end = tokenizer.end_of_document(); ids.empty() && end) ids.push_back(*end);
  return {ids.begin(), ids.end()};
}

// Returns the end tokens from the model folder and from the tokenizer, because the folder may specify a
// different end token than the one its documents use.
std::vector<std::int64_t> end_tokens(const OpenedModel& model, const Tokenizer& tokenizer) {
  const std::vector<TokenId> folder_tokens = hf_end_tokens(model.folder);
  std::vector<std::int64_t> ids(folder_tokens.begin(), folder_tokens.end());
  if (const auto end = tokenizer.end_of_document()) ids.push_back(*end);
  if (ids.empty())
    throw UserError("--stop: neither {} nor its tokenizer defines an end-of-text token",
                    model.folder.string());
  return ids;
}

// Memory for the keys and values of all tokens, the rotary embedding table, and the attention scores of the
// prompt. Computed in floating point, so that large user-specified sizes cannot overflow.
Bytes memory_of_attention(const ModelSpec& model, Precision precision, std::int64_t prompt,
                          std::int64_t total) {
  const double wide_size = precision == Precision::fp64 ? 8 : 4;
  const auto as_double = [](std::int64_t value) { return static_cast<double>(value); };
  const double bytes_per_token = 2 * as_double(model.layers) * as_double(model.kv_width()) * wide_size +
                                 3 * 8 * as_double(model.head_dim);
  const double scores = as_double(prompt) * as_double(prompt) * (2 * as_double(model.heads) * wide_size + 1);
  return Bytes(static_cast<std::int64_t>(std::min(1e18, as_double(total) * bytes_per_token + scores)));
}

}  // namespace

GeneratedText generate_text(const TextOptions& options,
                            const std::function<void(const std::string&)>& on_text, EventSink& events) {
  check_option_ranges(options);
  Inference model = open_for_inference(options.model, options.compute, events);
  const ModelSpec& spec = model.opened.spec;
  const auto tokenizer = tokenizer_for_text(model.opened, options.tokenizer, events);
  GeneratedText result;
  result.prompt_ids = prompt_of(options, *tokenizer);
  const std::int64_t prompt = std::ssize(result.prompt_ids), total = prompt + options.num_tokens;
  refuse_too_large_pass(inference_plan(spec, model.precision, 1, std::max<std::int64_t>(1, prompt)), spec,
                        model.device, memory_of_attention(spec, model.precision, prompt, total),
                        fmt::format("{} prompt tokens and {} new tokens", prompt, options.num_tokens));
  if (spec.positions == PositionKind::rope && total > spec.max_positions)
    events.report(Warning{fmt::format("{} tokens exceed the {} positions that {} was trained for", total,
                                      spec.max_positions, spec.name)});
  TextStream stream(*tokenizer);
  GenerateOptions generate_options{.num_tokens = options.num_tokens, .seed = options.seed};
  generate_options.temperature = options.is_greedy ? 0 : options.temperature.value_or(kDefaultTemperature);
  generate_options.top_p = options.top_p.value_or(1);
  if (options.stops) generate_options.end_tokens = end_tokens(model.opened, *tokenizer);
  generate_options.on_token = [&](std::int64_t id) { on_text(stream.push(static_cast<TokenId>(id))); };
  result.ids =
      generate(spec, model.precision, model.parameters, model.device, result.prompt_ids, generate_options);
  on_text(stream.finish());
  result.text = repair_utf8(tokenizer->decode({result.ids.begin(), result.ids.end()}, true));
  return result;
}

}  // namespace optimus
