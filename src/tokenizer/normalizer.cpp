// See normalizer.h.
#include "tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>

#include "base/error.h"

namespace optimus {
namespace {

bool composes(UnicodeForm form) { return form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc; }

std::uint16_t unstable_classes(UnicodeForm form) {
  switch (form) {
    case UnicodeForm::kNfc:
      return kNfcUnstable;
    case UnicodeForm::kNfd:
      return kNfdUnstable;
    case UnicodeForm::kNfkc:
      return kNfcUnstable | kNfkdUnstable;
    case UnicodeForm::kNfkd:
      return kNfkdUnstable;
  }
  return 0;
}

int combining_class(CodePoint c) {
  return utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class;
}

// Sorts each run of combining marks into canonical order. The implementation in utf8proc takes quadratic time
// on long runs.
void order_marks(std::vector<CodePoint>& run) {
  for (auto begin = run.begin(); begin != run.end();) {
    if (combining_class(*begin) == 0) {
      ++begin;
      continue;
    }
    const auto end = std::find_if(begin, run.end(), [](CodePoint c) { return combining_class(c) == 0; });
    std::stable_sort(begin, end,
                     [](CodePoint a, CodePoint b) { return combining_class(a) < combining_class(b); });
    begin = end;
  }
}

void append_decomposed(CodePoint c, bool is_compatible, std::vector<CodePoint>& out) {
  constexpr int kMaxLength = 32;  // U+FDFA decomposes into 18 code points
  utf8proc_int32_t parts[kMaxLength];
  int boundary = 0;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                                      (is_compatible ? UTF8PROC_COMPAT : 0));
  const auto count =
      utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts, kMaxLength, options, &boundary);
  ensure(count >= 0 && count <= kMaxLength, "cannot decompose U+{:04X}: utf8proc returned {}",
         static_cast<unsigned>(c), count);
  out.insert(out.end(), parts, parts + count);
}

void append_run(UnicodeForm form, std::string_view text, const CharClasses& classes,
                std::vector<CodePoint>& run, std::string& out) {
  run.clear();
  const bool is_compatible = form == UnicodeForm::kNfkc || form == UnicodeForm::kNfkd;
  for (std::size_t at = 0; at < text.size();) {
    const DecodedChar next = decode_char(text.data() + at);
    if (classes.is(next.code_point, is_compatible ? kNfkdUnstable : kNfdUnstable))
      append_decomposed(next.code_point, is_compatible, run);
    else
      run.push_back(next.code_point);
    at += static_cast<std::size_t>(next.size);
  }
  order_marks(run);
  if (composes(form)) {
    static_assert(sizeof(utf8proc_int32_t) == sizeof(CodePoint));
    const auto size = utf8proc_normalize_utf32(
        reinterpret_cast<utf8proc_int32_t*>(run.data()), static_cast<utf8proc_ssize_t>(run.size()),
        static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    ensure(size >= 0, "cannot compose characters: utf8proc returned {}", size);
    run.resize(static_cast<std::size_t>(size));
  }
  for (const CodePoint c : run) append_utf8(c, out);
}

// Whether the text is already in the normal form. The check is fast because this is true for most texts.
bool is_stable(UnicodeForm form, std::string_view text, const CharClasses& classes) {
  const std::uint16_t unstable = unstable_classes(form);
  for (const char *at = text.data(), *end = at + text.size(); at != end;) {
    if (static_cast<unsigned char>(*at) < 0x80) {
      ++at;
      continue;
    }
    const DecodedChar next = decode_char(at);
    if (classes.is(next.code_point, unstable)) return false;
    at += next.size;
  }
  return true;
}

// BERT's normalizer in one pass: cleans the text, puts spaces around Chinese characters, decomposes, strips
// accents and converts to lower case.
class BertPass {
 public:
  BertPass(const BertNormalizer& options, const CharClasses& classes, std::vector<CodePoint>& run,
           std::string& out)
      : options_(options), classes_(classes), run_(run), out_(out) {
    run_.clear();
  }

  void apply(std::string_view text) {
    for (std::size_t at = 0; at < text.size();) {
      const DecodedChar next = decode_char(text.data() + at);
      at += static_cast<std::size_t>(next.size);
      take(next.code_point);
    }
    flush();
  }

 private:
  void take(CodePoint c) {
    const std::uint16_t kind = classes_.of(c);
    if (options_.clean_text && (kind & (kControl | kSpace)) != 0) {
      if ((kind & kControl) == 0) emit(' ');
    } else if (options_.handle_chinese_chars && c >= 0x3400 && is_chinese_character(c)) {
      emit(' ');
      decompose_or_emit(c, kind);
      emit(' ');
    } else {
      decompose_or_emit(c, kind);
    }
  }
  // Decomposed marks are collected in run_ until the run is complete, because canonical decomposition sorts
  // them.
  void decompose_or_emit(CodePoint c, std::uint16_t kind) {
    if (options_.strip_accents && (kind & kNfdUnstable) != 0)
      append_decomposed(c, false, run_);
    else
      emit(c);
  }
  void emit(CodePoint c) {
    if (!run_.empty()) flush();
    write(c);
  }
  void flush() {
    order_marks(run_);
    for (const CodePoint c : run_) write(c);
    run_.clear();
  }
  void write(CodePoint c) {
    if (options_.strip_accents && classes_.is(c, kAccent)) return;
    if (options_.lowercase)
      append_lower(c, out_);
    else
      append_utf8(c, out_);
  }

  const BertNormalizer& options_;
  const CharClasses& classes_;
  std::vector<CodePoint>& run_;
  std::string& out_;
};

void append_lowercase(std::string_view text, std::string& out) {
  for (std::size_t at = 0; at < text.size();) {
    const DecodedChar next = decode_char(text.data() + at);
    append_lower(next.code_point, out);
    at += static_cast<std::size_t>(next.size);
  }
}

}  // namespace

void append_normal_form(UnicodeForm form, std::string_view text, const CharClasses& classes,
                        std::vector<CodePoint>& run, std::string& out) {
  const std::uint16_t unstable = unstable_classes(form);
  const auto size_if_unstable = [&](std::size_t at) -> std::size_t {
    const DecodedChar next = decode_char(text.data() + at);
    return classes.is(next.code_point, unstable) ? static_cast<std::size_t>(next.size) : 0;
  };
  // `previous` is the position of the last stable character, with which marks may combine.
  std::size_t copied_end = 0, previous = 0;
  for (std::size_t at = 0; at < text.size();) {
    if (size_if_unstable(at) == 0) {
      previous = at;
      at += static_cast<std::size_t>(decode_char(text.data() + at).size);
      continue;
    }
    // A mark that is classified as stable is newer than the Unicode tables of the tokenizers library, so it
    // is left unchanged.
    const bool joins_previous = composes(form) && previous < at &&
                                combining_class(decode_char(text.data() + previous).code_point) == 0;
    const std::size_t begin = joins_previous ? previous : at;
    while (at < text.size()) {
      const std::size_t size = size_if_unstable(at);
      if (size == 0) break;
      at += size;
    }
    out += text.substr(copied_end, begin - copied_end);
    append_run(form, text.substr(begin, at - begin), classes, run, out);
    copied_end = previous = at;
  }
  out += text.substr(copied_end);
}

void append_replaced(const Replace& replace, std::string_view text, RegexScratch& scratch, std::string& out) {
  if (const auto* regex = std::get_if<SplitRegex>(&replace.pattern)) {
    regex->for_each_part(text, scratch, [&](std::size_t begin, std::size_t end, bool is_match) {
      out += is_match ? std::string_view(replace.content) : text.substr(begin, end - begin);
    });
    return;
  }
  const std::string& literal = std::get<std::string>(replace.pattern);
  std::size_t copied_end = 0;
  for (std::size_t at; (at = text.find(literal, copied_end)) != std::string_view::npos;) {
    out += text.substr(copied_end, at - copied_end);
    out += replace.content;
    copied_end = at + literal.size();
  }
  out += text.substr(copied_end);
}

bool Normalizer::may_remove_text() const {
  return std::any_of(steps_.begin(), steps_.end(), [](const NormalizerStep& step) {
    const auto* replace = std::get_if<Replace>(&step);
    return std::holds_alternative<BertNormalizer>(step) || (replace != nullptr && replace->content.empty());
  });
}

std::string_view Normalizer::apply(std::string_view text, const CharClasses& classes,
                                   NormalizerScratch& scratch, RegexScratch& regex_scratch) const {
  // Unicode normalization expands a byte to at most 11 bytes. The limit is needed because a file may chain
  // replacements that double the text each time.
  const std::size_t num_bytes = text.size(), largest = 32 * num_bytes + (64 << 10);
  for (const NormalizerStep& step : steps_) {
    const auto* const form = std::get_if<UnicodeForm>(&step);
    if (text.empty() || (form != nullptr && is_stable(*form, text, classes))) continue;
    std::string& out = scratch.other_text;
    out.clear();
    if (form != nullptr)
      append_normal_form(*form, text, classes, scratch.run, out);
    else if (const auto* bert = std::get_if<BertNormalizer>(&step))
      BertPass(*bert, classes, scratch.run, out).apply(text);
    else if (std::holds_alternative<Lowercase>(step))
      append_lowercase(text, out);
    else if (const auto* prepend = std::get_if<Prepend>(&step))
      out.append(prepend->text).append(text);
    else
      append_replaced(std::get<Replace>(step), text, regex_scratch, out);
    if (out.size() > largest)
      throw UserError(
          "the tokenizer's normalizer produces {} bytes from {} bytes of text; at most {} are supported",
          out.size(), num_bytes, largest);
    scratch.text.swap(scratch.other_text);
    text = scratch.text;
  }
  return text;
}

}  // namespace optimus
