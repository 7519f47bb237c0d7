// Implements samples.h. Masked-LM masking is in masking.cpp.
#include "data/samples.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/text.h"
#include "data/permutation.h"

namespace optimus {

void declare(OptionTable& table, SampleOptions& options) {
  table.add_choice<Packing>(
      "packing", options.packing, {{"stream", Packing::stream}, {"document", Packing::document}},
      "how to form sequences: concatenate documents and split every --seq tokens (stream), or split "
      "each document separately (document)");
  table.add_choice<DocumentMask>("document-mask", options.mask,
                                 {{"across", DocumentMask::across}, {"within", DocumentMask::within}},
                                 "attention across all documents of a sequence (across), or only within each "
                                 "document, where positions restart (within)");
}

Split split_for_validation(std::shared_ptr<const TokenSet> tokens, double fraction) {
  if (!(fraction >= 0 && fraction < 1))
    throw UserError("validation fraction: expected at least 0 and below 1, got {}", fraction);
  const std::int64_t end = tokens->num_tokens();
  const auto num_validation = static_cast<std::int64_t>(std::llround(static_cast<double>(end) * fraction));
  std::int64_t boundary = end - num_validation;
  if (num_validation > 0 && boundary > 0 && boundary < end) {
    // Moves the boundary to the start of the next document, unless this would remove more than half of the
    // validation tokens.
    const std::int64_t next = tokens->document_start(tokens->document_of(boundary - 1) + 1);
    if (next < end && next - boundary <= num_validation / 2) boundary = next;
  }
  return {{tokens, 0, boundary}, {tokens, boundary, end}};
}

Windows::Windows(StreamRange range, Packing packing, std::int64_t sequence_length, bool next_token)
    : range_(std::move(range)),
      packing_(packing),
      sequence_length_(sequence_length),
      overlap_(next_token ? 1 : 0) {
  if (sequence_length < 1 || sequence_length > kMaxSequenceLength)
    throw UserError("--seq: expected 1 to {}, got {}", kMaxSequenceLength, sequence_length);
  const std::int64_t length = range_.end - range_.begin;
  if (length <= overlap_)
    throw UserError("the data contains {} tokens, but a sample needs at least {}",
                    std::max<std::int64_t>(length, 0), overlap_ + 1);
  if (packing == Packing::stream) return;
  first_document_ = range_.tokens->document_of(range_.begin);
  const std::int64_t last_document = range_.tokens->document_of(range_.end - 1);
  window_counts_.push_back(0);
  for (std::int64_t d = first_document_; d <= last_document; ++d) {
    const std::int64_t begin = std::max(range_.begin, range_.tokens->document_start(d));
    const std::int64_t inputs = std::min(range_.end, range_.tokens->document_start(d + 1)) - begin - overlap_;
    window_counts_.push_back(window_counts_.back() +
                             std::max<std::int64_t>(0, (inputs + sequence_length - 1) / sequence_length));
  }
  if (size() == 0)
    throw UserError("no document is long enough: a sample needs at least {} tokens", overlap_ + 1);
}

std::int64_t Windows::size() const {
  if (packing_ == Packing::document) return window_counts_.back();
  return (range_.end - range_.begin - overlap_ + sequence_length_ - 1) / sequence_length_;
}

Span Windows::operator[](std::int64_t window) const {
  ensure(window >= 0 && window < size(), "window {} is out of range for {} windows", window, size());
  std::int64_t begin = range_.begin, end = range_.end;
  if (packing_ == Packing::document) {
    const auto after = std::upper_bound(window_counts_.begin(), window_counts_.end(), window);
    const std::int64_t document = after - window_counts_.begin() - 1;
    begin = std::max(begin, range_.tokens->document_start(first_document_ + document));
    end = std::min(end, range_.tokens->document_start(first_document_ + document + 1));
    window -= window_counts_[static_cast<std::size_t>(document)];
  }
  const std::int64_t first = begin + window * sequence_length_;
  return {first, std::min(first + sequence_length_, end - overlap_)};
}

Samples::Samples(std::vector<BlendPart> parts, SampleOptions options, std::int64_t vocab_size,
                 std::optional<MaskingOptions> masking)
    : options_(options), vocab_size_(vocab_size), masking_(std::move(masking)) {
  if (parts.empty()) throw UserError("no data was specified");
  for (const BlendPart& part : parts) {
    if (!(part.weight > 0) || !std::isfinite(part.weight))
      throw UserError("weight of a data set in a blend: expected a positive number, got {}", part.weight);
    windows_.emplace_back(part.range, options.packing, options.sequence_length, !masking_.has_value());
  }
  // The share of a part is relative to the total weight of this part and all later parts.
  std::vector<double> remaining_weights(parts.size() + 1);
  for (std::size_t i = parts.size(); i > 0; --i)
    remaining_weights[i - 1] = remaining_weights[i] + parts[i - 1].weight;
  for (std::size_t i = 0; i < parts.size(); ++i)
    shares_.push_back(
        static_cast<std::uint64_t>(std::min(1.0, parts[i].weight / remaining_weights[i]) * 0x1p63));
  shares_.back() = std::uint64_t{1} << 63;
}

// Sample n comes from part 0 if floor((n + 1) w) - floor(n w) is 1, where w is the share of part 0. The
// remaining samples are renumbered and assigned to the other parts in the same way. After n samples, every
// part has provided its share up to rounding. No table is needed.
Samples::SampleSource Samples::source_of(std::int64_t n) const {
  __extension__ using Wide = unsigned __int128;
  std::size_t part = 0;
  auto index = static_cast<std::uint64_t>(n);
  while (true) {
    const auto before = static_cast<std::uint64_t>((static_cast<Wide>(index) * shares_[part]) >> 63);
    const auto after = static_cast<std::uint64_t>((static_cast<Wide>(index + 1) * shares_[part]) >> 63);
    if (after > before) return {part, static_cast<std::int64_t>(before)};
    index -= before;
    ++part;
  }
}

std::int64_t Samples::epoch_size() const {
  std::int64_t total = 0;
  for (const Windows& windows : windows_) total += windows.size();
  return total;
}

Span Samples::window_of(const SampleSource& source) const {
  const Windows& windows = windows_[source.part];
  const std::int64_t epoch = source.index / windows.size(), position = source.index % windows.size();
  const RandomKey key =
      RandomKey(static_cast<std::uint64_t>(options_.seed)).derive("epoch").derive(source.part);
  const Permutation shuffle(key.derive(static_cast<std::uint64_t>(epoch)), windows.size());
  return windows[shuffle(position)];
}

std::vector<std::int64_t> Samples::lengths(std::int64_t n) const {
  const SampleSource source = source_of(n);
  const Span window = window_of(source);
  if (options_.mask == DocumentMask::across) return {window.size()};
  const TokenSet& tokens = *windows_[source.part].range().tokens;
  std::vector<std::int64_t> result;
  std::int64_t begin = window.begin;
  for (std::int64_t document = tokens.document_of(begin); begin < window.end; ++document) {
    const std::int64_t end = std::min(window.end, tokens.document_start(document + 1));
    if (end > begin) result.push_back(end - begin);
    begin = end;
  }
  return result;
}

Sample Samples::read(std::int64_t n) const {
  const SampleSource source = source_of(n);
  Sample sample = slice(source.part, window_of(source));
  if (masking_) {
    const RandomKey mask_key = RandomKey(static_cast<std::uint64_t>(options_.seed)).derive("mask");
    mask_tokens(mask_key.derive(static_cast<std::uint64_t>(n)), *masking_, sample);
  }
  return sample;
}

Sample Samples::slice(std::size_t part, Span window) const {
  const StreamRange& range = windows_[part].range();
  const bool next_token = !masking_.has_value();
  std::vector<TokenId> tokens(static_cast<std::size_t>(window.size() + (next_token ? 1 : 0)));
  range.tokens->read(window.begin, tokens);
  for (std::size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i] < 0 || tokens[i] >= vocab_size_)
      throw UserError(
          "the data contains token {} at position {}, but the model's vocabulary has only {} tokens; was the "
          "data prepared with another tokenizer?",
          tokens[i], window.begin + static_cast<std::int64_t>(i), vocab_size_);

  Sample sample;
  const auto length = static_cast<std::size_t>(window.size());
  sample.inputs.assign(tokens.begin(), tokens.begin() + window.size());
  sample.targets.assign(length, kNoTarget);
  sample.positions.resize(length);
  sample.documents.resize(length);
  if (next_token) std::copy(tokens.begin() + 1, tokens.end(), sample.targets.begin());

  std::int64_t document = range.tokens->document_of(window.begin), index = 0, document_begin = window.begin;
  for (std::int64_t at = window.begin; at < window.end; ++at) {
    const auto i = static_cast<std::size_t>(at - window.begin);
    const bool is_within = options_.mask == DocumentMask::within;
    while (at >= range.tokens->document_start(document + 1)) {
      ++document;
      if (at < range.tokens->document_start(document + 1)) ++index, document_begin = at;
    }
    sample.documents[i] = static_cast<std::int32_t>(index);
    sample.positions[i] = static_cast<std::int32_t>(at - (is_within ? document_begin : window.begin));
    if (is_within && at + 1 == range.tokens->document_start(document + 1)) sample.targets[i] = kNoTarget;
  }
  sample.num_targets =
      std::count_if(sample.targets.begin(), sample.targets.end(), [](TokenId t) { return t != kNoTarget; });
  return sample;
}

std::vector<std::pair<double, std::string>> parse_blend(const std::vector<std::string>& arguments) {
  if (arguments.size() == 1) return {{1.0, arguments[0]}};
  if (arguments.size() % 2 != 0)
    throw UserError("--data: expected pairs of weight and name (0.7 a 0.3 b), got {} words",
                    arguments.size());
  std::vector<std::pair<double, std::string>> parts;
  for (std::size_t i = 0; i < arguments.size(); i += 2) {
    double weight = 0;
    option_value::parse(weight, arguments[i], "--data: weight of " + arguments[i + 1]);
    if (!(weight > 0))
      throw UserError("--data: weight of {}: expected a positive number, got {}", arguments[i + 1],
                      arguments[i]);
    parts.emplace_back(weight, arguments[i + 1]);
  }
  return parts;
}

}  // namespace optimus
