// Implements split_regex.h. PCRE2's objects are C handles, which the two structs in this file own.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "tokenizer/split_regex.h"

#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <new>

#include "base/error.h"
#include "base/text.h"

namespace optimus {
namespace {

constexpr std::size_t kMaxPatternBytes = 10'000;

bool is_general_category(std::string_view name) {
  if (name.empty() || name.size() > 2) return false;
  constexpr std::string_view kMajor[] = {"L", "M", "N", "P", "S", "Z", "C"};
  constexpr std::string_view kMinor[] = {"ultmo", "nce", "dlo", "cdseifo", "mcko", "slp", "cfson"};
  for (std::size_t i = 0; i < std::size(kMajor); ++i)
    if (name[0] == kMajor[i][0]) return name.size() == 1 || kMinor[i].find(name[1]) != std::string_view::npos;
  return false;
}

// Translates a pattern into PCRE2 syntax in one pass.
class Translator {
 public:
  Translator(std::string_view pattern, const std::string& location)
      : pattern_(pattern), location_(location) {}

  std::string run() {
    if (pattern_.size() > kMaxPatternBytes)
      throw UserError("{} is {} bytes long; at most {} are supported", location_, pattern_.size(),
                      kMaxPatternBytes);
    while (offset_ < pattern_.size()) {
      if (pattern_[offset_] == '\\')
        translate_escape();
      else if (in_class_)
        translate_inside_class();
      else
        translate_outside_class();
    }
    return std::move(out_);
  }

 private:
  bool next_is(std::string_view text) const { return pattern_.substr(offset_, text.size()) == text; }
  void copy(std::size_t count) {
    out_ += pattern_.substr(offset_, count);
    offset_ += count;
  }
  [[noreturn]] void refuse(std::string_view construct) const {
    throw UserError("{}: {} in the pattern {} is not supported", location_, construct,
                    in_quotes(pattern_, 200));
  }

  void translate_escape() {
    if (offset_ + 1 >= pattern_.size()) refuse("a trailing \\");
    const char c = pattern_[offset_ + 1];
    if (c == 's' || c == 'S') {  // PCRE2 treats U+180E as a space, but Unicode does not
      out_ += c == 's' ? "\\p{White_Space}" : "\\P{White_Space}";
      offset_ += 2;
    } else if (c == 'p' || c == 'P') {
      translate_property();
    } else if (std::string_view("dDrntfeax").find(c) != std::string_view::npos ||
               (!in_class_ && std::string_view("AzZ").find(c) != std::string_view::npos)) {
      copy(2);
    } else if (static_cast<unsigned char>(c) < 0x80 && !std::isalnum(static_cast<unsigned char>(c))) {
      copy(2);  // escaped punctuation is a literal
    } else {
      refuse(fmt::format("the escape \\{}", pattern_.substr(offset_ + 1, 1)));
    }
  }

  void translate_property() {
    const std::size_t close = pattern_.find('}', offset_);
    if (offset_ + 2 >= pattern_.size() || pattern_[offset_ + 2] != '{' || close == std::string_view::npos)
      refuse("\\p without {…}");
    std::string_view name = pattern_.substr(offset_ + 3, close - offset_ - 3);
    const bool is_negated = !name.empty() && name[0] == '^';
    if (is_negated) name.remove_prefix(1);
    const bool is_plain =
        std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isalpha(c) || c == '_'; });
    if (name.empty() || !is_plain) refuse(fmt::format("the property {}", in_quotes(name)));
    // PCRE2 interprets a bare script name as "script extensions".
    out_ += fmt::format("\\{}{{{}{}{}}}", pattern_[offset_ + 1], is_negated ? "^" : "",
                        is_general_category(name) ? "" : "sc:", name);
    offset_ = close + 1;
  }

  void translate_inside_class() {
    if (pattern_[offset_] == ']') in_class_ = false;
    if (pattern_[offset_] == '[') refuse("[ inside […]");
    if (next_is("&&")) refuse("&& inside […]");
    copy(1);
  }

  void translate_outside_class() {
    if (pattern_[offset_] == '[') {
      in_class_ = true;
      copy(next_is("[^") ? 2 : 1);
      if (offset_ < pattern_.size() && pattern_[offset_] == ']') refuse("[]");
    } else if (pattern_[offset_] == '(') {
      translate_group();
    } else if (next_is("{,")) {
      refuse("{,n}");
    } else if (next_is("}+")) {
      refuse("{…}+");  // possessive in Oniguruma, greedy in PCRE2
    } else {
      copy(1);
    }
  }

  void translate_group() {
    if (next_is("(*")) refuse("(*");
    if (!next_is("(?")) return copy(1);
    for (const std::string_view known : {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"})
      if (next_is(known)) return copy(known.size());
    if (offset_ == 0 && next_is("(?i)")) return copy(4);
    refuse(fmt::format("the group {}", pattern_.substr(offset_, 4)));
  }

  std::string_view pattern_;
  const std::string& location_;
  std::size_t offset_ = 0;
  bool in_class_ = false;
  std::string out_;
};

std::string message_of(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

std::string translate_pattern(std::string_view oniguruma, const std::string& location) {
  return Translator(oniguruma, location).run();
}

struct RegexScratch::Memory {
  pcre2_match_data* match = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(32 << 10, 1 << 20, nullptr);

  Memory() {
    if (match == nullptr || context == nullptr || stack == nullptr) throw std::bad_alloc();
    pcre2_jit_stack_assign(context, nullptr, stack);
    pcre2_set_heap_limit(context, 64 << 10);  // KiB
  }
  Memory(const Memory&) = delete;
  ~Memory() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(match);
  }
};

RegexScratch::RegexScratch() : memory_(std::make_unique<Memory>()) {}
RegexScratch::~RegexScratch() = default;
RegexScratch::RegexScratch(RegexScratch&&) noexcept = default;

struct SplitRegex::Compiled {
  pcre2_code* code = nullptr;
  ~Compiled() { pcre2_code_free(code); }
};

SplitRegex::SplitRegex(std::string_view pattern, std::string location)
    : compiled_(std::make_unique<Compiled>()), location_(std::move(location)) {
  const std::string translated = translate_pattern(pattern, location_);
  const std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  // In Ruby syntax, ^ and $ always match at line boundaries.
  const std::uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  int error = 0;
  PCRE2_SIZE offset = 0;
  compiled_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(), options,
                                  &error, &offset, context.get());
  if (compiled_->code == nullptr)
    throw UserError("{}: the pattern {} is invalid: {}", location_, in_quotes(pattern, 200),
                    message_of(error));
  pcre2_jit_compile(compiled_->code,
                    PCRE2_JIT_COMPLETE);  // if this fails, PCRE2 falls back to its interpreter
}

SplitRegex::~SplitRegex() = default;
SplitRegex::SplitRegex(SplitRegex&&) noexcept = default;

std::optional<SplitRegex::Match> SplitRegex::find(std::string_view text, std::size_t from,
                                                  RegexScratch& scratch) const {
  RegexScratch::Memory& memory = *scratch.memory_;
  // A reasonable pattern may backtrack once over a long run ("\s*[\r\n]+" over spaces), but not several
  // times.
  const std::size_t limit = std::min<std::size_t>(50'000 + 8 * text.size(), UINT32_MAX);
  pcre2_set_match_limit(memory.context, static_cast<std::uint32_t>(limit));
  pcre2_set_depth_limit(memory.context, static_cast<std::uint32_t>(limit));
  const auto match = [&](std::uint32_t options) {
    return pcre2_match(compiled_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                       PCRE2_NO_UTF_CHECK | options, memory.match, memory.context);
  };
  int result = match(0);
  if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = match(PCRE2_NO_JIT);
  if (result == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (result < 0)
    throw UserError("{}: the pattern cannot be applied to a text of {} bytes: {}", location_, text.size(),
                    message_of(result));
  const PCRE2_SIZE* const range = pcre2_get_ovector_pointer(memory.match);
  if (range[0] < from || range[1] < range[0])
    throw UserError("{}: the pattern returned a match before the search position", location_);
  return Match{range[0], range[1]};
}

}  // namespace optimus
