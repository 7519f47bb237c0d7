// See constants_json.h.
#include "cost/constants_json.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace optimus {
namespace {

constexpr int kConstantsVersion = 1;

}  // namespace

NamedConstants builtin_constants() { return {fitted_constants(), "fitted on published runs"}; }

OrderedJson to_json(const NamedConstants& named) {
  OrderedJson json = {
      {"format", "optimus-constants"}, {"version", kConstantsVersion}, {"origin", named.origin}};
  json["constants"] = OrderedJson::object();
  for (const ConstantRow& row : constant_rows())
    if (const double value = named.constants.*row.member; value != fitted_constants().*row.member)
      json["constants"][std::string(row.name)] = value;
  return json;
}

NamedConstants parse_constants(std::string_view text, const std::string& source) {
  const Json document = parse_json(text, source);
  const JsonView json(document, source);
  if (json.at("format").text() != "optimus-constants") json.at("format").refuse("\"optimus-constants\"");
  if (const auto version = json.at("version").integer(); version != kConstantsVersion)
    throw UserError("{}: unsupported version {}; this program reads version {}", source, version,
                    kConstantsVersion);
  static const std::vector<std::string> keys = {"format", "version", "origin", "constants"};
  json.allow_only(keys);
  NamedConstants named_constants{fitted_constants(),
                                 fmt::format("{} ({})", source, json.text_or("origin", "by hand"))};
  std::vector<std::string> names;
  for (const ConstantRow& row : constant_rows()) names.emplace_back(row.name);
  json.at("constants").allow_only(names);
  for (const ConstantRow& row : constant_rows())
    if (const auto value = json.at("constants").find(row.name)) {
      const double number = value->number();
      if (!(number >= row.min_value && number <= row.max_value))
        throw UserError("{}: expected {} to {}, got {}", value->location(), row.min_value, row.max_value,
                        number);
      named_constants.constants.*row.member = number;
    }
  return named_constants;
}

NamedConstants read_constants(const Path& path) {
  return parse_constants(read_input_file(path, Bytes(1 << 20)), path.string());
}

}  // namespace optimus
