// See pre_tokenizer.h.
#include "tokenizer/pre_tokenizer.h"

namespace optimus {
namespace {

// Converts matches and the text between them into pieces, according to `behavior`. The parts must arrive
// from left to right.
class PieceBuilder {
 public:
  PieceBuilder(std::string_view text, SplitBehavior behavior, PieceSink sink)
      : text_(text), behavior_(behavior), sink_(sink) {}

  void add_part(std::size_t begin, std::size_t end, bool is_match) {
    switch (behavior_) {
      case SplitBehavior::kRemoved:
        if (!is_match) emit(begin, end);
        break;
      case SplitBehavior::kIsolated:
        emit(begin, end);
        break;
      case SplitBehavior::kMergedWithPrevious:
        join_if(is_match && !was_match_, begin, end);
        break;
      case SplitBehavior::kMergedWithNext:
        join_if(!is_match && was_match_, begin, end);
        break;
      case SplitBehavior::kContiguous:
        join_if(is_match == was_match_, begin, end);
        break;
    }
    was_match_ = is_match;
  }
  void finish() { emit(begin_, end_); }

 private:
  // If `joins` is true, extends the pending piece by the part. Otherwise emits the pending piece and makes
  // the part the new pending piece.
  void join_if(bool joins, std::size_t begin, std::size_t end) {
    if (!joins) {
      emit(begin_, end_);
      begin_ = begin;
    }
    end_ = end;
  }
  void emit(std::size_t begin, std::size_t end) {
    if (begin != end) sink_(text_.substr(begin, end - begin), text_.data() + text_.size());
  }

  std::string_view text_;
  SplitBehavior behavior_;
  PieceSink sink_;
  std::size_t begin_ = 0, end_ = 0;
  bool was_match_ = false;
};

void split_by_literal(std::string_view text, std::string_view literal, bool invert, PieceBuilder& builder) {
  std::size_t covered_end = 0;
  for (std::size_t at; (at = text.find(literal, covered_end)) != std::string_view::npos;) {
    if (at != covered_end) builder.add_part(covered_end, at, invert);
    builder.add_part(at, at + literal.size(), !invert);
    covered_end = at + literal.size();
  }
  if (covered_end != text.size()) builder.add_part(covered_end, text.size(), invert);
}

void split_by_class(std::string_view text, std::uint16_t any_of, const CharClasses& classes,
                    PieceBuilder& builder) {
  std::size_t covered_end = 0;
  for (std::size_t at = 0; at < text.size();) {
    const DecodedChar next = decode_char(text.data() + at);
    const std::size_t end = at + static_cast<std::size_t>(next.size);
    if (classes.is(next.code_point, any_of)) {
      if (covered_end != at) builder.add_part(covered_end, at, false);
      builder.add_part(at, end, true);
      covered_end = end;
    }
    at = end;
  }
  if (covered_end != text.size()) builder.add_part(covered_end, text.size(), false);
}

void split_words(std::string_view text, const CharClasses& classes, PieceSink sink) {
  const auto kind_at = [&](std::size_t at) {
    const std::uint16_t kind = classes.of(decode_char(text.data() + at).code_point);
    return (kind & kWord) != 0 ? kWord : static_cast<CharClass>(kind & kSpace);
  };
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const CharClass kind = kind_at(at);
    while (at < text.size() && kind_at(at) == kind)
      at += static_cast<std::size_t>(decode_char(text.data() + at).size);
    if (kind != kSpace) sink(text.substr(begin, at - begin), text.data() + text.size());
  }
}

// Returns the text with spaces replaced. Also prepends the replacement character if the scheme requires it.
std::string_view with_metaspaces(const Metaspace& step, std::string_view text, bool is_text_start,
                                 std::string& out) {
  const bool starts_with_one = text.starts_with(' ') || text.starts_with(step.replacement);
  const bool prepends = step.prepend == Metaspace::Prepend::kAlways ||
                        (step.prepend == Metaspace::Prepend::kFirst && is_text_start);
  out.clear();
  if (prepends && !starts_with_one) out = step.replacement;
  std::size_t copied_end = 0;
  for (std::size_t at; (at = text.find(' ', copied_end)) != std::string_view::npos; copied_end = at + 1) {
    out += text.substr(copied_end, at - copied_end);
    out += step.replacement;
  }
  out += text.substr(copied_end);
  return out;
}

struct StepContext {
  const CharClasses& classes;
  std::string& text;  // buffer for steps that change the text
  RegexScratch& regex;
  bool is_text_start;
};

// There is one overload per step. Each splits `piece` and passes the resulting pieces to `sink`.
void split_piece(const FastSplit& step, std::string_view piece, StepContext& context, PieceSink sink) {
  const char* const end = piece.data() + piece.size();
  for (const char* at = piece.data(); at != end;) {
    const char* const next = piece_end(step.pattern, at, end, context.classes);
    sink({at, static_cast<std::size_t>(next - at)}, end);
    at = next;
  }
}

void split_piece(const PatternSplit& step, std::string_view piece, StepContext& context, PieceSink sink) {
  PieceBuilder builder(piece, step.behavior, sink);
  if (const auto* literal = std::get_if<std::string>(&step.pattern)) {
    split_by_literal(piece, *literal, step.invert, builder);
  } else {
    std::get<SplitRegex>(step.pattern)
        .for_each_part(piece, context.regex, [&](std::size_t begin, std::size_t end, bool is_match) {
          builder.add_part(begin, end, is_match != step.invert);
        });
  }
  builder.finish();
}

void split_piece(const ClassSplit& step, std::string_view piece, StepContext& context, PieceSink sink) {
  PieceBuilder builder(piece, step.behavior, sink);
  split_by_class(piece, step.any_of, context.classes, builder);
  builder.finish();
}

void split_piece(const WordSplit&, std::string_view piece, StepContext& context, PieceSink sink) {
  split_words(piece, context.classes, sink);
}

void split_piece(const PrefixSpace&, std::string_view piece, StepContext& context, PieceSink sink) {
  if (piece.starts_with(' ')) return sink(piece, piece.data() + piece.size());
  context.text.assign(1, ' ').append(piece);
  sink(context.text, context.text.data() + context.text.size());
}

void split_piece(const Metaspace& step, std::string_view piece, StepContext& context, PieceSink sink) {
  const std::string_view text = with_metaspaces(step, piece, context.is_text_start, context.text);
  if (!step.split) return sink(text, text.data() + text.size());
  PieceBuilder builder(text, SplitBehavior::kMergedWithNext, sink);
  split_by_literal(text, step.replacement, false, builder);
  builder.finish();
}

// Applies the steps to one piece.
struct StepRunner {
  const std::vector<PreTokenizerStep>& steps;
  const CharClasses& classes;
  PreTokenizerScratch& scratch;
  RegexScratch& regex;
  PieceSink sink;

  void run(std::size_t index, std::string_view piece, bool is_text_start) {
    if (index == steps.size()) return sink(piece, piece.data() + piece.size());
    StepContext context{classes, scratch.texts[index], regex, is_text_start};
    auto next = [&](std::string_view part, const char*) {
      run(index + 1, part, is_text_start && part.data() == piece.data());
    };
    // The last step passes its pieces directly to the sink.
    const PieceSink out = index + 1 == steps.size() ? sink : PieceSink(next);
    std::visit([&](const auto& step) { split_piece(step, piece, context, out); }, steps[index]);
  }
};

}  // namespace

void PreTokenizer::run(std::string_view text, bool is_text_start, const CharClasses& classes,
                       PreTokenizerScratch& scratch, RegexScratch& regex_scratch, PieceSink sink) const {
  if (text.empty()) return;
  scratch.texts.resize(steps_.size());
  StepRunner{steps_, classes, scratch, regex_scratch, sink}.run(0, text, is_text_start);
}

}  // namespace optimus
