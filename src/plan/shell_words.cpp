// Implements shell_words.h. Expands the text in one pass: a variable has the value of its latest assignment
// so far.
#include "plan/shell_words.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/text.h"

namespace optimus {
namespace {

constexpr std::size_t kMaxExpandedBytes = std::size_t{4} << 20;
constexpr int kMaxDepth = 16;

bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_name_part(char c) { return is_name_start(c) || (c >= '0' && c <= '9'); }
bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }
bool is_separator(char c) { return std::string_view("\n;&|()<>").find(c) != std::string_view::npos; }

// Evaluates integer arithmetic as in $((…)). value() is empty if the text is not an expression or overflows.
class Arithmetic {
 public:
  explicit Arithmetic(std::string_view text) : text_(text) {}
  std::optional<std::int64_t> value() {
    const auto result = parse_sum(0);
    skip();
    return offset_ == text_.size() ? result : std::nullopt;
  }

 private:
  using Number = std::optional<std::int64_t>;
  void skip() {
    while (offset_ < text_.size() && is_blank(text_[offset_])) ++offset_;
  }
  bool take(char c) {
    skip();
    if (offset_ >= text_.size() || text_[offset_] != c) return false;
    ++offset_;
    return true;
  }
  Number parse_atom(int depth) {
    if (depth > kMaxDepth) return {};
    if (take('(')) {
      const Number inner = parse_sum(depth + 1);
      return take(')') ? inner : Number{};
    }
    skip();
    std::int64_t number = 0;
    const auto [rest, error] = std::from_chars(text_.data() + offset_, text_.data() + text_.size(), number);
    if (error != std::errc{}) return {};
    offset_ = static_cast<std::size_t>(rest - text_.data());
    return number;
  }
  Number parse_product(int depth) {
    Number left = parse_atom(depth);
    while (left) {
      const char sign = take('*') ? '*' : take('/') ? '/' : take('%') ? '%' : '\0';
      if (sign == '\0') break;
      const Number right = parse_atom(depth);
      if (!right) return {};
      std::int64_t out = 0;
      if (sign == '*' && __builtin_mul_overflow(*left, *right, &out)) return {};
      if (sign != '*' && (*right == 0 || *right == -1)) return {};
      left = sign == '*' ? out : sign == '/' ? *left / *right : *left % *right;
    }
    return left;
  }
  Number parse_sum(int depth) {
    Number left = parse_product(depth);
    while (left) {
      const char sign = take('+') ? '+' : take('-') ? '-' : '\0';
      if (sign == '\0') break;
      const Number right = parse_product(depth);
      std::int64_t out = 0;
      if (!right || (sign == '+' ? __builtin_add_overflow(*left, *right, &out)
                                 : __builtin_sub_overflow(*left, *right, &out)))
        return {};
      left = out;
    }
    return left;
  }

  std::string_view text_;
  std::size_t offset_ = 0;
};

using Words = std::vector<std::string>;

// Collects the words that one written word expands to. Quoted parts are joined to the current word. Unquoted
// variables are split at blanks.
class WordBuilder {
 public:
  void add(std::string_view text) { current_ += text, is_word_ = true; }
  void add_split(std::string_view text) {
    for (const char c : text)
      if (is_blank(c) || c == '\n')
        finish();
      else
        current_ += c, is_word_ = true;
  }
  void add_words(const Words& words) {
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (i > 0) finish();
      add(words[i]);
    }
  }
  void mark_as_word() { is_word_ = true; }
  Words take() {
    finish();
    return std::move(words_);
  }

 private:
  void finish() {
    if (is_word_) words_.push_back(std::move(current_));
    current_.clear(), is_word_ = false;
  }
  Words words_;
  std::string current_;
  bool is_word_ = false;
};

class ShellReader {
 public:
  ShellReader(std::string_view text, std::string source) : text_(text), source_(std::move(source)) {}

  std::vector<Words> commands() {
    while (offset_ < text_.size()) read_piece();
    end_command();
    return std::move(commands_);
  }

 private:
  struct Value {
    Words words;
    bool is_array = false;
  };

  char peek(std::size_t offset = 0) const {
    return offset_ + offset < text_.size() ? text_[offset_ + offset] : '\0';
  }
  bool is_continuation() const {
    return peek() == '\\' && (peek(1) == '\n' || (peek(1) == '\r' && peek(2) == '\n'));
  }

  void count_expansion(std::size_t bytes) {
    if ((expanded_bytes_ += bytes + 1) > kMaxExpandedBytes)
      throw UserError("{}: expands to more than {} MiB; this is not a launch script", source_,
                      kMaxExpandedBytes >> 20);
  }

  void skip_comment() {
    while (offset_ < text_.size() && text_[offset_] != '\n') ++offset_;
  }

  void end_command() {
    if (!command_.empty()) commands_.push_back(std::move(command_));
    command_.clear();
  }

  // Reads one word, separator, comment or assignment.
  void read_piece() {
    if (is_continuation()) {
      offset_ += peek(1) == '\n' ? 2 : 3;
    } else if (is_blank(peek())) {
      ++offset_;
    } else if (peek() == '#') {
      skip_comment();
    } else if (is_separator(peek())) {
      ++offset_;
      end_command();
    } else if (!read_assignment()) {
      const Words words = read_word();
      const bool is_redirected = (peek() == '>' || peek() == '<') && words.size() == 1 &&
                                 words.front().find_first_not_of("0123456789") == std::string::npos;
      if (is_redirected) return;  // the 2 of 2>&1
      for (const std::string& word : words) count_expansion(word.size());
      command_.insert(command_.end(), words.begin(), words.end());
      drop_keyword();
    }
  }

  // Drops a keyword that can precede a command or an assignment.
  void drop_keyword() {
    static const Words keywords = {"if",   "then",  "else", "elif", "fi",     "do",       "done",  "while",
                                   "case", "esac",  "{",    "}",    "export", "readonly", "local", "exec",
                                   "time", "nohup", "env",  "sudo", "in",     "declare"};
    if (command_.size() == 1 &&
        std::find(keywords.begin(), keywords.end(), command_.front()) != keywords.end())
      command_.clear();
  }

  bool read_assignment() {
    if (!command_.empty() || !is_name_start(peek())) return false;
    std::size_t end = offset_;
    while (end < text_.size() && is_name_part(text_[end])) ++end;
    const bool is_append = text_.substr(end, 2) == "+=";
    if (!is_append && text_.substr(end, 1) != "=") return false;
    const std::string name(text_.substr(offset_, end - offset_));
    offset_ = end + (is_append ? 2 : 1);
    Value value = peek() == '(' ? read_array() : Value{{join(read_word(), " ")}, false};
    for (const std::string& word : value.words) count_expansion(word.size());
    Value& target = variables_[name];
    if (!is_append) {
      target = std::move(value);
    } else if (value.is_array || target.is_array) {
      target.is_array = true;
      target.words.insert(target.words.end(), value.words.begin(), value.words.end());
    } else {
      target.words = {join(target.words, " ") + join(value.words, " ")};
      count_expansion(target.words.front().size());
    }
    return true;
  }

  Value read_array() {
    Value value{{}, true};
    ++offset_;
    while (offset_ < text_.size() && peek() != ')') {
      if (is_continuation() || is_blank(peek()) || is_separator(peek())) {
        ++offset_;
      } else if (peek() == '#') {
        skip_comment();
      } else {
        const Words words = read_word();
        for (const std::string& word : words) count_expansion(word.size());
        value.words.insert(value.words.end(), words.begin(), words.end());
      }
    }
    if (offset_ < text_.size()) ++offset_;
    return value;
  }

  Words read_word() {
    WordBuilder word;
    while (offset_ < text_.size() && !is_blank(peek()) && !is_separator(peek()) && !is_continuation())
      read_part(word, false);
    return word.take();
  }

  // Reads a character, an escape, a quotation or a variable at offset_.
  void read_part(WordBuilder& word, bool is_quoted) {
    const char c = peek();
    if (c == '\\') {
      ++offset_;
      if (offset_ < text_.size()) word.add(text_.substr(offset_++, 1));
    } else if (c == '\'' && !is_quoted) {
      const std::size_t end = std::min(text_.find('\'', offset_ + 1), text_.size());
      word.add(text_.substr(offset_ + 1, end - offset_ - 1));
      offset_ = std::min(end + 1, text_.size());
    } else if (c == '"' && !is_quoted) {
      read_quotation(word);
    } else if (c == '$') {
      read_dollar(word, is_quoted);
    } else if (c == '`') {
      offset_ = std::min(text_.find('`', offset_ + 1), text_.size());
      if (offset_ < text_.size()) ++offset_;
    } else {
      word.add(text_.substr(offset_++, 1));
    }
  }

  void read_quotation(WordBuilder& word) {
    word.mark_as_word();
    ++offset_;
    while (offset_ < text_.size() && peek() != '"')
      if (is_continuation())
        offset_ += peek(1) == '\n' ? 2 : 3;
      else
        read_part(word, true);
    if (offset_ < text_.size()) ++offset_;
  }

  void read_dollar(WordBuilder& word, bool is_quoted) {
    const std::size_t begin = offset_++;
    if (peek() == '(') {
      read_parentheses(word, begin);
    } else if (peek() == '{') {
      read_braces(word, is_quoted);
    } else if (is_name_start(peek())) {
      std::size_t end = offset_;
      while (end < text_.size() && is_name_part(text_[end])) ++end;
      const std::string name(text_.substr(offset_, end - offset_));
      offset_ = end;
      put_variable(word, name, is_quoted, text_.substr(begin, end - begin));
    } else if (offset_ < text_.size() &&
               std::string_view("@*#?$!0123456789").find(peek()) != std::string_view::npos) {
      ++offset_;  // arguments of the script itself, which are unknown
    } else {
      word.add("$");
    }
  }

  // $(command) is not run and is left as written. $((a * b)) is evaluated.
  void read_parentheses(WordBuilder& word, std::size_t begin) {
    int depth = 0;
    const std::size_t open = offset_;
    for (; offset_ < text_.size(); ++offset_) {
      if (peek() == '(') ++depth;
      if (peek() == ')' && --depth == 0) break;
    }
    if (offset_ < text_.size()) ++offset_;
    const std::string_view whole = text_.substr(begin, offset_ - begin);
    const std::string_view inner = text_.substr(open, offset_ - open);
    if (starts_with(inner, "((") && ends_with(inner, "))") && inner.size() >= 4) {
      const std::string expression = join(expand(inner.substr(2, inner.size() - 4), true), " ");
      if (const auto value = Arithmetic(with_values(expression)).value())
        return word.add(std::to_string(*value));
    }
    word.add(whole);
  }

  // In an arithmetic expression, names need no dollar sign.
  std::string with_values(const std::string& expression) {
    std::string result;
    for (std::size_t i = 0; i < expression.size();) {
      std::size_t end = i + 1;
      if (is_name_start(expression[i]))
        while (end < expression.size() && is_name_part(expression[end])) ++end;
      const std::string part = expression.substr(i, end - i);
      const auto variable = variables_.find(part);
      result += variable == variables_.end() ? part : join(variable->second.words, " ");
      count_expansion(result.size() > kMaxExpandedBytes ? result.size() : 0);
      i = end;
    }
    return result;
  }

  // Skips to the brace that closes the brace at offset_. Braces in quotes and after a backslash are ignored.
  void skip_braces(bool is_quoted) {
    int depth = 0;
    for (; offset_ < text_.size(); ++offset_) {
      if (peek() == '\\') {
        ++offset_;
      } else if (peek() == '\'' && !is_quoted) {
        offset_ = std::min(text_.find('\'', offset_ + 1), text_.size());
      } else if (peek() == '{') {
        ++depth;
      } else if (peek() == '}' && --depth == 0) {
        return;
      }
    }
    offset_ = text_.size();
  }

  void read_braces(WordBuilder& word, bool is_quoted) {
    const std::size_t begin = offset_ - 1;
    skip_braces(is_quoted);
    const std::string_view inner = text_.substr(begin + 2, offset_ - std::min(offset_, begin + 2));
    if (offset_ < text_.size()) ++offset_;
    std::size_t end = 0;
    while (end < inner.size() && is_name_part(inner[end])) ++end;
    const std::string name(inner.substr(0, end));
    std::string_view remainder = inner.substr(end);
    if (starts_with(remainder, "[@]") || starts_with(remainder, "[*]")) remainder.remove_prefix(3);
    if (variables_.contains(name) || remainder.empty())
      return put_variable(word, name, is_quoted, text_.substr(begin, offset_ - begin));
    if (starts_with(remainder, ":")) remainder.remove_prefix(1);
    if (remainder.empty() || (remainder[0] != '-' && remainder[0] != '=')) return;
    const Words default_words = expand(remainder.substr(1), is_quoted);
    word.add_words(default_words);
  }

  void put_variable(WordBuilder& word, const std::string& name, bool is_quoted,
                    std::string_view original_text) {
    const auto variable = variables_.find(name);
    if (variable == variables_.end()) return word.add(original_text);
    for (const std::string& part : variable->second.words) count_expansion(part.size());
    if (variable->second.is_array) return word.add_words(variable->second.words);
    const std::string& value = variable->second.words.front();
    is_quoted ? word.add(value) : word.add_split(value);
  }

  // Expands a substring separately: the default of a variable, or an expression.
  Words expand(std::string_view part, bool is_quoted) {
    if (++depth_ > kMaxDepth) throw UserError("{}: expressions nested deeper than {}", source_, kMaxDepth);
    const std::string_view whole = std::exchange(text_, part);
    const std::size_t at = std::exchange(offset_, 0);
    WordBuilder word;
    while (offset_ < text_.size()) read_part(word, is_quoted && peek() != '"');
    text_ = whole, offset_ = at, --depth_;
    return word.take();
  }

  std::string_view text_;
  std::string source_;
  std::size_t offset_ = 0, expanded_bytes_ = 0;
  int depth_ = 0;
  std::map<std::string, Value> variables_;
  Words command_;
  std::vector<Words> commands_;
};

bool is_flag(const std::string& word) { return starts_with(word, "--") && word.size() > 2; }

std::size_t program_index(const Words& command) {
  return static_cast<std::size_t>(
      std::find_if(command.begin(), command.end(), [](const auto& w) { return ends_with(w, ".py"); }) -
      command.begin());
}

}  // namespace

LaunchLine launch_line(std::string_view text, const std::string& source) {
  const std::vector<Words> commands = ShellReader(text, source).commands();
  LaunchLine best_launch, bare_arguments;
  std::size_t maximum = 0;
  for (const Words& command : commands) {
    const std::size_t program = program_index(command);
    if (program < command.size()) {
      const auto begin = command.begin() + static_cast<std::ptrdiff_t>(program) + 1;
      const auto flags = static_cast<std::size_t>(std::count_if(begin, command.end(), is_flag));
      if (flags < maximum || flags == 0) continue;
      maximum = flags;
      best_launch = {{command.begin(), begin}, {begin, command.end()}};
    } else if (is_flag(command.front())) {
      bare_arguments.arguments.insert(bare_arguments.arguments.end(), command.begin(), command.end());
    }
  }
  if (best_launch.arguments.empty()) best_launch = bare_arguments;
  if (best_launch.arguments.empty())
    throw UserError("{}: found no training program with arguments; specify a launch script or its arguments",
                    source);
  return best_launch;
}

}  // namespace optimus
