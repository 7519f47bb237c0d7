// Every error names the file, the place in it, the value found and the value expected.
#include "base/json.h"

#include <gtest/gtest.h>

#include "base/temporary_folder.h"

namespace optimus {
namespace {

TEST(Json, SyntaxErrorsNameLineAndColumn) {
  EXPECT_EQ(message_of([] { parse_json("{\"a\": 1,\n \"b\": ]}", "x.json"); }),
            "x.json: line 2, column 7: not valid JSON at ']}'");
  EXPECT_EQ(message_of([] { parse_json("{\"a\": 1", "x.json"); }),
            "x.json: line 1, column 8: not valid JSON at the end of the text");
}

TEST(Json, RejectsDuplicateKeys) {
  EXPECT_EQ(message_of([] { parse_json("{\"a\": {\"b\": 1,\n  \"\\u0062\": 2}}", "x.json"); }),
            "x.json: line 2, column 10: key 'b' appears twice in one object");
  EXPECT_NO_THROW(parse_json(R"({"a": {"a": 1}, "b": [{"a": 1}, {"a": 2}]})", "x.json"));
}

TEST(Json, RejectsDeepNesting) {
  const std::string deep(100000, '[');
  EXPECT_EQ(message_of([&] { parse_json(deep, "x.json"); }), "x.json: line 1: nested deeper than 200 levels");
  EXPECT_NO_THROW(parse_json("\"" + deep + "\"", "x.json"));  // brackets inside a string do not count
}

TEST(Json, ViewsNameThePlace) {
  const Json document =
      parse_json(R"({"model": {"layers": -3, "sizes": [1, "two"]}, "n": 1e6, "none": null})", "x.json");
  const JsonView view(document, "x.json");
  EXPECT_EQ(message_of([&] { view.at("model").at("layers").integer(1); }),
            "x.json: model.layers: expected an integer of at least 1, got '-3'");
  EXPECT_EQ(message_of([&] { view.at("model").at("sizes").elements()[1].number(); }),
            "x.json: model.sizes[1]: expected a number, got '\"two\"'");
  EXPECT_EQ(message_of([&] { view.at("modle"); }), "x.json: modle is missing");
  EXPECT_EQ(view.at("n").integer(), 1'000'000);
  EXPECT_FALSE(view.find("none"));
  EXPECT_EQ(view.integer_or("absent", 7), 7);
  EXPECT_EQ(message_of([&] { view.at("model").text(); }), "x.json: model: expected a string, got an object");
}

TEST(Json, UnknownKeySuggestsNearest) {
  const Json document = parse_json(R"({"layrs": 1})", "x.json");
  const std::vector<std::string> known = {"layers", "hidden"};
  EXPECT_EQ(message_of([&] { JsonView(document, "x.json").allow_only(known); }),
            "x.json: unknown key 'layrs'; did you mean 'layers'?");
}

TEST(Json, IntegersOutOfRange) {
  const Json document = parse_json("[18446744073709551615, 9223372036854775807, 1.5, 1e300]", "x");
  const auto elements = JsonView(document, "x").elements();
  EXPECT_THROW(elements[0].integer(), UserError);
  EXPECT_EQ(elements[1].integer(), INT64_MAX);
  EXPECT_THROW(elements[2].integer(), UserError);
  EXPECT_THROW(elements[3].integer(), UserError);
}

}  // namespace
}  // namespace optimus
