// JSON with precise error messages. nlohmann::json does the parsing. This header adds messages that name the
// file, the location in it, the expected value and the actual value.
//
//   const Json document = parse_json(text, "config.json");
//   const JsonView config(document, "config.json");
//   const auto layers = config.at("num_hidden_layers").integer(1, 100'000);
//
// All functions throw a UserError on bad input. Nesting is limited, so that malicious files cannot exhaust
// the stack. Duplicate keys in one object are rejected, because JSON readers disagree about which one wins.
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
// Keeps the keys in insertion order. Used for files that people read.
using OrderedJson = nlohmann::ordered_json;

// `source` is the file name that messages show.
Json parse_json(std::string_view text, const std::string& source);
Json read_json(const Path& path);

// A value inside a JSON document together with its path. Does not own the document.
class JsonView {
 public:
  JsonView(const Json& value, std::string location) : value_(&value), location_(std::move(location)) {}

  const Json& raw() const { return *value_; }
  const std::string& location() const { return location_; }
  bool is_null() const { return value_->is_null(); }

  // Members of an object. at() throws if the member is absent; find() returns nullopt if it is absent or
  // null.
  JsonView at(std::string_view key) const;
  std::optional<JsonView> find(std::string_view key) const;
  std::vector<std::pair<std::string, JsonView>> members() const;
  // Throws if the object has a key that is not in `known_keys`; the message names the nearest known key.
  void allow_only(std::span<const std::string> known_keys) const;

  std::vector<JsonView> elements() const;

  std::int64_t integer(std::int64_t smallest = INT64_MIN, std::int64_t largest = INT64_MAX) const;
  double number() const;
  bool boolean() const;
  const std::string& text() const;

  // The value of a member, or `default_value` if it is absent or null.
  std::int64_t integer_or(std::string_view key, std::int64_t default_value) const;
  double number_or(std::string_view key, double default_value) const;
  bool boolean_or(std::string_view key, bool default_value) const;
  std::string text_or(std::string_view key, std::string default_value) const;

  // Throws a UserError such as "config.json: n_head: expected an integer of at least 1, got -3".
  [[noreturn]] void refuse(std::string_view expected) const;

 private:
  const Json* value_;
  std::string location_;
};

}  // namespace optimus
