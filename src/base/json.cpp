// See json.h.
#include "base/json.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "base/text.h"

namespace optimus {
namespace {

constexpr int kMaxNestingDepth = 200;

struct Place {
  std::size_t line = 1, column = 1;
};

Place place_of(std::string_view text, std::size_t offset) {
  const std::string_view before = text.substr(0, std::min(offset, text.size()));
  const auto last_break = before.rfind('\n');
  return {static_cast<std::size_t>(std::count(before.begin(), before.end(), '\n')) + 1,
          before.size() - (last_break == std::string_view::npos ? 0 : last_break + 1) + 1};
}

// Destruction, serialization and comparison of nested values are recursive, so the nesting is checked before
// any value is built.
void check_json_nesting(std::string_view text, const std::string& source) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxNestingDepth)
        throw UserError("{}: line {}: nested deeper than {} levels", source, place_of(text, i).line,
                        kMaxNestingDepth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
}

// A character iterator that records its position, because the callbacks of nlohmann::json receive the parsed
// value but not its position.
struct TrackingIterator {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  const char* at;
  const char** furthest;

  reference operator*() const { return *at; }
  TrackingIterator& operator++() {
    *furthest = ++at;
    return *this;
  }
  bool operator==(const TrackingIterator& other) const { return at == other.at; }
};

Json parse_without_repeated_keys(std::string_view text, const std::string& source) {
  const char* furthest = text.data();
  std::vector<std::unordered_set<std::string>> open_objects;
  const auto check_key = [&](int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) open_objects.emplace_back();
    if (event == Json::parse_event_t::object_end) open_objects.pop_back();
    if (event == Json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!open_objects.back().insert(key).second) {
        const Place location = place_of(text, static_cast<std::size_t>(furthest - text.data()) - 1);
        throw UserError("{}: line {}, column {}: key {} appears twice in one object", source, location.line,
                        location.column, in_quotes(key));
      }
    }
    return true;
  };
  return Json::parse(TrackingIterator{text.data(), &furthest},
                     TrackingIterator{text.data() + text.size(), &furthest}, check_key);
}

}  // namespace

Json parse_json(std::string_view text, const std::string& source) {
  check_json_nesting(text, source);
  try {
    return parse_without_repeated_keys(text, source);
  } catch (const Json::parse_error& error) {
    const std::size_t offset = error.byte == 0 ? 0 : error.byte - 1;
    const Place location = place_of(text, offset);
    const std::string actual =
        offset < text.size() ? in_quotes(text.substr(offset, 12)) : "the end of the text";
    throw UserError("{}: line {}, column {}: not valid JSON at {}", source, location.line, location.column,
                    actual);
  } catch (const Json::exception& error) {
    throw UserError("{}: not valid JSON ({})", source, in_quotes(error.what(), 200));
  }
}

Json read_json(const Path& path) {
  const std::string text = value_or_throw(read_file(path));
  return parse_json(text, path.string());
}

void JsonView::refuse(std::string_view expected) const {
  std::string actual = value_->is_object() ? "an object" : value_->is_array() ? "a list" : "";
  if (actual.empty()) actual = in_quotes(value_->dump(-1, ' ', false, Json::error_handler_t::replace));
  throw UserError("{}: expected {}, got {}", location_, expected, actual);
}

namespace {
std::string member_path(const std::string& location, std::string_view key) {
  const bool is_top = location.find(": ") == std::string::npos;
  return fmt::format("{}{}{}", location, is_top ? ": " : ".", key);
}
}  // namespace

JsonView JsonView::at(std::string_view key) const {
  if (!value_->is_object()) refuse("an object");
  const auto member = value_->find(key);
  if (member == value_->end()) throw UserError("{} is missing", member_path(location_, key));
  return {*member, member_path(location_, key)};
}

std::optional<JsonView> JsonView::find(std::string_view key) const {
  if (!value_->is_object()) refuse("an object");
  const auto member = value_->find(key);
  if (member == value_->end() || member->is_null()) return std::nullopt;
  return JsonView(*member, member_path(location_, key));
}

std::vector<std::pair<std::string, JsonView>> JsonView::members() const {
  if (!value_->is_object()) refuse("an object");
  std::vector<std::pair<std::string, JsonView>> result;
  for (const auto& [key, value] : value_->items())
    result.emplace_back(key, JsonView(value, member_path(location_, key)));
  return result;
}

void JsonView::allow_only(std::span<const std::string> known_keys) const {
  if (!value_->is_object()) refuse("an object");
  for (const auto& [key, value] : value_->items())
    if (std::find(known_keys.begin(), known_keys.end(), key) == known_keys.end())
      throw UserError("{}: unknown key {}{}", location_, in_quotes(key), did_you_mean(key, known_keys));
}

std::vector<JsonView> JsonView::elements() const {
  if (!value_->is_array()) refuse("a list");
  std::vector<JsonView> result;
  result.reserve(value_->size());
  for (std::size_t i = 0; i < value_->size(); ++i)
    result.emplace_back((*value_)[i], fmt::format("{}[{}]", location_, i));
  return result;
}

std::int64_t JsonView::integer(std::int64_t smallest, std::int64_t largest) const {
  const auto refuse_range = [&]() {
    if (smallest == INT64_MIN && largest == INT64_MAX) refuse("an integer");
    if (largest == INT64_MAX) refuse(fmt::format("an integer of at least {}", smallest));
    refuse(fmt::format("an integer from {} to {}", smallest, largest));
  };
  std::int64_t number = 0;
  if (value_->is_number_unsigned()) {
    const auto large = value_->get<std::uint64_t>();
    if (large > static_cast<std::uint64_t>(INT64_MAX)) refuse_range();
    number = static_cast<std::int64_t>(large);
  } else if (value_->is_number_integer()) {
    number = value_->get<std::int64_t>();
  } else if (value_->is_number_float() && std::abs(value_->get<double>()) < 0x1p53 &&
             std::trunc(value_->get<double>()) == value_->get<double>()) {
    number = static_cast<std::int64_t>(value_->get<double>());  // 1e6 is an integer too
  } else {
    refuse_range();
  }
  if (number < smallest || number > largest) refuse_range();
  return number;
}

double JsonView::number() const {
  if (!value_->is_number()) refuse("a number");
  return value_->get<double>();
}

bool JsonView::boolean() const {
  if (!value_->is_boolean()) refuse("true or false");
  return value_->get<bool>();
}

const std::string& JsonView::text() const {
  if (!value_->is_string()) refuse("a string");
  return value_->get_ref<const std::string&>();
}

std::int64_t JsonView::integer_or(std::string_view key, std::int64_t default_value) const {
  const auto member = find(key);
  return member ? member->integer() : default_value;
}

double JsonView::number_or(std::string_view key, double default_value) const {
  const auto member = find(key);
  return member ? member->number() : default_value;
}

bool JsonView::boolean_or(std::string_view key, bool default_value) const {
  const auto member = find(key);
  return member ? member->boolean() : default_value;
}

std::string JsonView::text_or(std::string_view key, std::string default_value) const {
  const auto member = find(key);
  return member ? member->text() : default_value;
}

}  // namespace optimus
