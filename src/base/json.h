// JSON read with good messages. The library is nlohmann's; what is added here is that every error says which
// file, which place in it, what stood there and what was expected.
//
//   const Json document = parse_json(text, "config.json");
//   const JsonView config(document, "config.json");
//   const auto layers = config.at("num_hidden_layers").integer(1, 100'000);
//
// All functions throw UserError on bad input. Nesting is limited, so hostile files cannot exhaust the stack. A key that stands
// twice in one object is refused: readers disagree about which counts.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"

namespace optimus {

using Json = nlohmann::json;
// Keeps the order in which keys were written: for files that people read.
using OrderedJson = nlohmann::ordered_json;

// `source` is the file's name, for messages.
Json parse_json(std::string_view text, const std::string& source);
Json read_json(const Path& path);

// A value inside a JSON document together with the way to it. Does not own the document.
class JsonView {
 public:
  JsonView(const Json& value, std::string where) : value_(&value), where_(std::move(where)) {}

  const Json& raw() const { return *value_; }
  const std::string& where() const { return where_; }
  bool is_null() const { return value_->is_null(); }

  // Members of an object. at() refuses absence; find() gives nothing for an absent or null member.
  JsonView at(std::string_view key) const;
  std::optional<JsonView> find(std::string_view key) const;
  std::vector<std::pair<std::string, JsonView>> members() const;
  // Refuses any other key by name, with the nearest known one.
  void allow_only(std::span<const std::string> known) const;

  std::vector<JsonView> elements() const;

  std::int64_t integer(std::int64_t smallest = INT64_MIN, std::int64_t largest = INT64_MAX) const;
  double number() const;
  bool boolean() const;
  const std::string& text() const;

  // A member's value, or `otherwise` when it is absent or null.
  std::int64_t integer_or(std::string_view key, std::int64_t otherwise) const;
  double number_or(std::string_view key, double otherwise) const;
  bool boolean_or(std::string_view key, bool otherwise) const;
  std::string text_or(std::string_view key, std::string otherwise) const;

  // Throws: "config.json: n_head must be a whole number of at least 1, found -3".
  [[noreturn]] void refuse(std::string_view expected) const;

 private:
  const Json* value_;
  std::string where_;
};

}  // namespace optimus
