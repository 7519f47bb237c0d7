// Published shapes have the published numbers of parameters.
#include "model/presets.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "base/error.h"
#include "model/hf_config.h"
#include "model/open.h"
#include "model/tensors.h"

namespace optimus {
namespace {

TEST(Presets, ExactNumbersOfParameters) {
  const std::pair<const char*, std::int64_t> counts[] = {
      {"gpt2", 124439808},
      {"gpt2-medium", 354823168},
      {"gpt2-large", 774030080},
      {"gpt2-xl", 1557611200},
      {"llama2-7b", 6738415616},
      {"llama2-70b", 68976648192},
      {"llama3-8b", 8030261248},
      {"llama3-70b", 70553706496},
      {"llama3-405b", 405853388800},
      {"llama3.1-8b", 8030261248},
      {"llama3.2-1b", 1235814400},
      {"llama3.2-3b", 3212749824},
      {"qwen2.5-0.5b", 494032768},
      {"qwen2.5-1.5b", 1543714304},
      {"qwen2.5-3b", 3085938688},
      {"qwen2.5-7b", 7615616512},
      {"mistral-7b", 7241732096},
      {"qwen3-8b", 8190735360},
      {"bert-base", 109514298},
      {"mixtral-8x7b", 46702792704},
      {"mixtral-8x22b", 140630071296},
      {"qwen3-30b-a3b", 30532122624},
      {"qwen3-235b-a22b", 235093634560},
      {"deepseek-v3", 671026404352},
  };
  for (const auto& [name, count] : counts) EXPECT_EQ(num_parameters(*find_preset(name)), count) << name;
}

// The size agrees with the name within 10 %, which detects wrong digits in the tables.
TEST(Presets, NamesMatchSizes) {
  for (const std::string& name : preset_names()) {
    const auto at = name.rfind('-');
    const bool has_size = at != std::string::npos && std::isdigit(static_cast<unsigned char>(name[at + 1]));
    // the name 8x7b does not contain the size
    if (!has_size || name.find('x', at) != std::string::npos) continue;
    const double unit = name.back() == 'm' ? 1e6 : name.back() == 'b' ? 1e9 : 1e12;
    const double said = std::stod(name.substr(at + 1)) * unit;
    const double count = static_cast<double>(num_parameters(*find_preset(name)));
    EXPECT_NEAR(count / said, 1, name == "llama3.2-1b" || name == "qwen3-0.6b" ? 0.25 : 0.13) << name;
  }
}

TEST(Presets, NamesAreUniqueAndFoundInAnyCase) {
  const auto names = preset_names();
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
  EXPECT_EQ(find_preset("GPT2-XL")->name, "gpt2-xl");
  EXPECT_FALSE(find_preset("gpt5"));
  EXPECT_FALSE(find_preset(""));
}

TEST(OpenModel, OpensPresetsFoldersAndFiles) {
  EXPECT_EQ(open_model("llama3-8b").layers, 32);
  const Path folder = Path(testing::TempDir()) / "open-model";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << hf_config_from_spec(*find_preset("qwen3-8b")).dump();
  EXPECT_EQ(open_model(folder.string()).layers, 36);
  EXPECT_EQ(open_model((folder / "config.json").string()).layers, 36);
  std::filesystem::remove_all(folder);
}

TEST(OpenModel, SuggestsNearestPreset) {
  try {
    open_model("lama3-8b");
    FAIL();
  } catch (const UserError& error) {
    const std::string why = error.what();
    EXPECT_EQ(why.find("model 'lama3-8b' is neither a preset nor a folder with a config.json; did you mean "
                       "'llama3-8b'?; presets are gpt2, gpt2-medium"),
              0)
        << why;
  }
  EXPECT_THROW(open_model("/no/such/folder"), UserError);
  EXPECT_THROW(open_model(""), UserError);
  EXPECT_THROW(open_model(std::string(100000, 'x')), UserError);
}

}  // namespace
}  // namespace optimus
