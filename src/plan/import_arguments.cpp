// See import_arguments.h.
#include "plan/import_arguments.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/text.h"

namespace optimus {

ArgumentList::ArgumentList(const std::vector<std::string>& arguments, std::string source)
    : source_(std::move(source)) {
  for (const std::string& word : arguments) {
    const bool is_flag = starts_with(word, "--") && word.size() > 2;
    if (!is_flag) {
      if (!arguments_.empty()) arguments_.back().values.push_back(word);
      continue;
    }
    const std::size_t equals = word.find('=');
    Argument argument{word.substr(0, equals), {}, false};
    std::replace(argument.flag.begin(), argument.flag.end(), '_', '-');
    if (equals != std::string::npos) argument.values.push_back(word.substr(equals + 1));
    arguments_.push_back(std::move(argument));
  }
}

ArgumentList::Argument* ArgumentList::find(const std::string& flag) {
  Argument* match = nullptr;
  for (Argument& argument : arguments_)
    if (argument.flag == flag) argument.is_understood = true, match = &argument;
  return match;
}

bool ArgumentList::has_flag(const std::string& flag) { return find(flag) != nullptr; }

std::optional<std::string> ArgumentList::text(const std::string& flag) {
  const Argument* const match = find(flag);
  if (match == nullptr) return std::nullopt;
  if (match->values.empty()) throw UserError("{}: {} requires a value", source_, flag);
  return match->values.front();
}

std::optional<std::int64_t> ArgumentList::count(const std::string& flag, std::int64_t smallest,
                                                std::int64_t largest) {
  const std::optional<std::string> word = text(flag);
  if (!word) return std::nullopt;
  std::int64_t value = 0;
  const auto [rest, error] = std::from_chars(word->data(), word->data() + word->size(), value);
  if (error != std::errc{} || rest != word->data() + word->size() || value < smallest || value > largest)
    throw UserError("{}: {}: expected an integer of at least {}, got {}", source_, flag, smallest,
                    in_quotes(*word));
  return value;
}

std::optional<double> ArgumentList::number(const std::string& flag) {
  const std::optional<std::string> word = text(flag);
  if (!word) return std::nullopt;
  double value = 0;
  const auto [rest, error] = std::from_chars(word->data(), word->data() + word->size(), value);
  if (error != std::errc{} || rest != word->data() + word->size() || !(value > -1e300 && value < 1e300))
    throw UserError("{}: {}: expected a number, got {}", source_, flag, in_quotes(*word));
  return value;
}

std::vector<std::string> ArgumentList::values_of(const std::string& flag) {
  const Argument* const match = find(flag);
  return match == nullptr ? std::vector<std::string>{} : match->values;
}

std::string display_text(const ArgumentList::Argument& argument) {
  constexpr std::size_t kMaxLength = 120;
  std::string line = argument.flag;
  for (const std::string& value : argument.values)
    if (line.size() <= kMaxLength) line += " " + value;
  if (line.size() > kMaxLength) line = line.substr(0, kMaxLength) + "...";
  // The argument lists are also printed as JSON, which does not allow arbitrary bytes.
  for (char& c : line)
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) c = '?';
  return line;
}

}  // namespace optimus
