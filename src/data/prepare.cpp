// Implements prepare.h. One thread locates documents and writes tokens, and the other threads parse, filter
// and tokenize.
#include "data/prepare.h"

#include <chrono>
#include <thread>

#include "base/parallel.h"
#include "base/text.h"
#include "base/units.h"
#include "data/documents.h"
#include "data/megatron_file.h"

namespace optimus {
namespace {

enum class Verdict { keep, empty, too_short, held_out };

struct TokenizedDocument {
  Verdict verdict = Verdict::keep;
  Fingerprint text_fingerprint;
  std::vector<TokenId> tokens;
};

using Batch = std::vector<RawDocument>;

// Returns a batch that is large enough to amortize synchronization and small enough to keep all threads busy
// until the end.
std::optional<Batch> next_batch(DocumentReader& reader) {
  constexpr std::size_t kBatchBytes = 256 * 1024, kBatchDocuments = 1024;
  Batch batch;
  for (std::size_t bytes = 0; bytes < kBatchBytes && batch.size() < kBatchDocuments;) {
    std::optional<RawDocument> document = reader.next();
    if (!document) break;
    bytes += document->bytes.size();
    batch.push_back(std::move(*document));
  }
  return batch.empty() ? std::nullopt : std::optional(std::move(batch));
}

TokenizedDocument tokenize(const RawDocument& raw, const PrepareOptions& options, const Tokenizer& tokenizer,
                           const HeldOut& held_out) {
  TokenizedDocument result;
  const std::string text = text_of(raw, options.text_key);
  if (text.empty()) return {Verdict::empty, {}, {}};
  if (held_out.contains(text)) return {Verdict::held_out, {}, {}};
  if (options.filters.dedup) result.text_fingerprint = fingerprint(text);
  tokenizer.encode(text, result.tokens);
  if (result.tokens.empty()) return {Verdict::empty, {}, {}};
  if (std::ssize(result.tokens) < options.filters.min_tokens) return {Verdict::too_short, {}, {}};
  if (const auto end = tokenizer.end_of_document()) result.tokens.push_back(*end);
  return result;
}

}  // namespace

PrepareSummary tokenize_documents(const PrepareOptions& options, const Tokenizer& tokenizer,
                                  EventSink& events,
                                  const std::function<void(std::vector<TokenId>)>& consume) {
  const auto start_time = std::chrono::steady_clock::now();
  if (options.filters.min_tokens < 0)
    throw UserError("--min-tokens: expected at least 0, got {}", options.filters.min_tokens);
  if (options.filters.overlap_words < 0)
    throw UserError("--exclude-words: expected at least 0, got {}", options.filters.overlap_words);
  const HeldOut held_out({options.filters.exclude.begin(), options.filters.exclude.end()}, options.text_key,
                         options.filters.overlap_words, events);
  DocumentReader reader({options.inputs.begin(), options.inputs.end()}, events);
  PrepareSummary summary;
  summary.threads = options.threads > 0 ? options.threads
                                        : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  FingerprintSet fingerprints;

  const auto add_document = [&](TokenizedDocument document) {
    ++summary.documents_read;
    switch (document.verdict) {
      case Verdict::empty:
        ++summary.dropped_empty;
        return;
      case Verdict::too_short:
        ++summary.dropped_short;
        return;
      case Verdict::held_out:
        ++summary.dropped_held_out;
        return;
      case Verdict::keep:
        break;
    }
    if (options.filters.dedup && !fingerprints.insert(document.text_fingerprint).second)
      return void(++summary.dropped_duplicate);
    ++summary.documents_kept;
    summary.tokens += std::ssize(document.tokens);
    consume(std::move(document.tokens));
  };

  using Results = std::vector<TokenizedDocument>;
  transform_in_order<Batch, Results>(
      summary.threads, [&] { return next_batch(reader); },
      [&](Batch batch) {
        Results results;
        for (const RawDocument& raw : batch) results.push_back(tokenize(raw, options, tokenizer, held_out));
        return results;
      },
      [&](Results results) {
        for (TokenizedDocument& document : results) add_document(std::move(document));
        events.report(Progress{"tokenizing", reader.bytes_read(), reader.total_bytes(), "bytes"});
      });
  summary.bytes_read = reader.bytes_read();
  summary.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_time).count();
  return summary;
}

PrepareSummary prepare_token_files(const PrepareOptions& options, const Tokenizer& tokenizer,
                                   const Path& prefix, FileSystem& files, EventSink& events) {
  if (!prefix.has_filename())
    throw UserError("--out: {0} is a folder; specify a prefix, such as {0}tokens", prefix.string());
  // The writer is created with the first document, after the inputs have been listed, so that an output file
  // inside an input folder is not read as input.
  std::optional<MegatronWriter> writer;
  const TokenType type = token_type_for(tokenizer.vocab_size());
  const PrepareSummary summary =
      tokenize_documents(options, tokenizer, events, [&](std::vector<TokenId> tokens) {
        if (!writer) writer.emplace(value_or_throw(MegatronWriter::create(files, prefix, type)));
        value_or_throw(writer->add(tokens));
      });
  if (summary.documents_kept == 0)
    throw UserError(
        "all documents were dropped and nothing was written: {} read, {} empty, {} too short, {} duplicates, "
        "{} "
        "held out",
        summary.documents_read, summary.dropped_empty, summary.dropped_short, summary.dropped_duplicate,
        summary.dropped_held_out);
  value_or_throw(writer->finish());
  return summary;
}

OrderedJson to_json(const PrepareSummary& summary) {
  return {{"documents_read", summary.documents_read},
          {"documents", summary.documents_kept},
          {"dropped",
           {{"empty", summary.dropped_empty},
            {"short", summary.dropped_short},
            {"duplicate", summary.dropped_duplicate},
            {"held_out", summary.dropped_held_out}}},
          {"tokens", summary.tokens},
          {"bytes", summary.bytes_read},
          {"threads", summary.threads},
          {"seconds", summary.seconds}};
}

std::string text(const PrepareSummary& s) {
  const double megabytes = static_cast<double>(s.bytes_read) / 1e6;
  std::string result = fmt::format(
      "documents  {} of {} kept\ntokens     {} ({:.2f} bytes per token)\nread       {} in {}, {:.1f} MB/s on "
      "{} threads\n",
      with_commas(s.documents_kept), with_commas(s.documents_read), with_commas(s.tokens),
      s.tokens == 0 ? 0.0 : static_cast<double>(s.bytes_read) / static_cast<double>(s.tokens),
      text(Bytes(s.bytes_read)), text(Seconds(s.seconds)), megabytes / std::max(s.seconds, 1e-9), s.threads);
  if (s.documents_kept < s.documents_read)
    result += fmt::format("dropped    {} empty, {} too short, {} duplicates, {} held out\n",
                          with_commas(s.dropped_empty), with_commas(s.dropped_short),
                          with_commas(s.dropped_duplicate), with_commas(s.dropped_held_out));
  return result;
}

}  // namespace optimus
