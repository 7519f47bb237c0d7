// Opening models by the name that a user gives, reading their weights, and converting them to and from
// Hugging Face folders.
#include "checkpoint/open_model.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/failing_file_system.h"
#include "base/random.h"
#include "base/temporary_folder.h"
#include "checkpoint/convert.h"
#include "checkpoint/hf_tensors.h"
#include "inference/compare_logits.h"
#include "model/hf_config.h"
#include "model/random_spec.h"

namespace optimus {
namespace {

// Values that need more than 16 bits.
class RandomWeights final : public WeightSource {
 public:
  void read_box(const LogicalTensor& tensor, const Box& box, std::span<float> out) const override {
    fill(tensor, box, out);
  }
  void read_box(const LogicalTensor& tensor, const Box& box, std::span<double> out) const override {
    fill(tensor, box, out);
  }
  ElementType type() const override { return ElementType::f32; }
  std::string name() const override { return "random"; }

 private:
  template <typename Real>
  static void fill(const LogicalTensor& tensor, const Box& box, std::span<Real> out) {
    std::vector<float> values(out.size());
    fill_normal(RandomKey(3).derive(tensor.name), tensor.shape, box, std::span<float>(values));
    std::transform(values.begin(), values.end(), out.begin(), [](float v) { return Real(0.3F * v); });
  }
};

ModelSpec spec_of(Family family) {
  for (std::uint64_t seed = 0;; ++seed)
    if (const ModelSpec spec = random_spec(seed); spec.family == family) return spec;
}

void write_folder(const Path& folder, const ModelSpec& spec, ElementType type = ElementType::f32) {
  RealFileSystem files;
  NullSink events;
  write_model_folder(files, folder, {spec, type, "", {}}, RandomWeights(), Bytes(30'000), events);
}

ConvertOptions conversion(const Path& from, const Path& to) {
  ConvertOptions options;
  options.from = from.string(), options.to = to;
  return options;
}

TEST(OpenModel, PresetsAndConfigsHaveNoWeights) {
  const TemporaryFolder folder;
  NullSink events;
  const ModelSpec spec = spec_of(Family::llama);
  folder.write("config.json", hf_config_from_spec(spec).dump());
  EXPECT_EQ(open_weights(folder.path().string(), read_hf_config(folder.path()), events), nullptr);
  for (const std::string& name :
       {std::string("gpt2"), folder.path().string(), (folder / "config.json").string()}) {
    const std::string said = message_of([&] { open_trained_model(name, events); });
    EXPECT_NE(said.find("without weights"), std::string::npos) << said;
  }
}

TEST(OpenModel, WeightsMustFitModel) {
  const TemporaryFolder folder;
  NullSink events;
  write_folder(folder.path(), spec_of(Family::llama));
  const OpenedModel opened = open_trained_model(folder.path().string(), events);
  EXPECT_EQ(opened.weights->type(), ElementType::f32);
  ModelSpec other = opened.spec;
  other.max_positions *= 2;  // rotary positions have no weights
  EXPECT_NE(open_weights(folder.path().string(), other, events), nullptr);
  other.layers += 1;
  const std::string said = message_of([&] { open_weights(folder.path().string(), other, events); });
  EXPECT_NE(said.find("--from-scratch"), std::string::npos) << said;
  std::filesystem::resize_file(folder / "model-00001-of-00002.safetensors", 100);
  EXPECT_NE(message_of([&] { open_trained_model(folder.path().string(), events); }).find("model-00001"),
            std::string::npos);
}

TEST(Convert, RoundTripKeepsLogitsOfEveryFamily) {
  for (const FamilyTraits& family : all_families()) {
    if (family.is_mixture) continue;  // reading its weights is not supported yet
    const TemporaryFolder folder;
    NullSink events;
    RealFileSystem files;
    write_folder(folder / "a", spec_of(family.family));
    ConvertOptions narrow = conversion(folder / "a", folder / "b"),
                   wide = conversion(folder / "b", folder / "c");
    narrow.type = ElementType::bf16, wide.type = ElementType::f32;
    convert(narrow, files, events), convert(wide, files, events);
    const OpenedModel a = open_trained_model((folder / "a").string(), events),
                      b = open_trained_model((folder / "b").string(), events),
                      c = open_trained_model((folder / "c").string(), events);
    const LogitsComparison rounded = compare_logits(a, b, events), exact = compare_logits(b, c, events);
    EXPECT_TRUE(rounded.is_done && rounded.is_equal) << family.model_type;
    EXPECT_GT(rounded.rounding, 0);
    EXPECT_LT(rounded.rounding, 0.1);  // weights changed by up to 1 in 256
    EXPECT_TRUE(exact.is_equal) << family.model_type;
    EXPECT_EQ(exact.rounding, 0);
    EXPECT_FALSE(compare_logits(a, c, events).is_equal) << family.model_type;  // both fp32, but c was rounded
  }
}

TEST(Convert, CheckpointRoundTripIsBitIdentical) {
  for (const FamilyTraits& family : all_families())
    for (const ElementType type : {ElementType::f32, ElementType::bf16}) {
      if (family.is_mixture) continue;
      const TemporaryFolder folder;
      NullSink events;
      RealFileSystem files;
      write_folder(folder / "a", spec_of(family.family), type);
      ConvertOptions in = conversion(folder / "a", folder / "run"),
                     out = conversion(folder / "run", folder / "b");
      in.format = ModelFormat::checkpoint, out.type = type;
      EXPECT_EQ(convert(in, files, events).to_type, ElementType::f32);  // masters
      convert(out, files, events);
      const OpenedModel run = open_trained_model((folder / "run").string(), events);
      EXPECT_EQ(run.folder, folder / "run" / "checkpoints" / "step-0");
      EXPECT_TRUE(compare_logits(open_trained_model(in.from, events), run, events).is_equal);
      const SafetensorsFolder a = SafetensorsFolder::open(folder / "a"),
                              b = SafetensorsFolder::open(folder / "b");
      for (const SafetensorsFile& file : a.files())
        for (const StoredTensor& tensor : file.tensors()) {
          const auto other = b.find(tensor.name);
          ASSERT_TRUE(other && other.tensor->type == type) << tensor.name;
          EXPECT_TRUE(std::ranges::equal(other.tensor->bytes, tensor.bytes)) << tensor.name;
        }
    }
}

TEST(OpenModel, CheckpointMustBeCompleteAndMatchModel) {
  const TemporaryFolder folder;
  NullSink events;
  RealFileSystem files;
  write_folder(folder / "a", spec_of(Family::gpt2));
  ConvertOptions in = conversion(folder / "a", folder / "run");
  in.format = ModelFormat::checkpoint;
  convert(in, files, events);
  const Path step = folder / "run" / "checkpoints" / "step-0";
  EXPECT_EQ(model_path_of((folder / "run").string()), step.string());
  EXPECT_EQ(model_path_of(step.string()), step.string());
  const OpenedModel opened = open_trained_model((folder / "run").string(), events);
  ModelSpec deeper = opened.spec;
  ++deeper.layers;
  EXPECT_NE(
      message_of([&] { open_weights((folder / "run").string(), deeper, events); }).find("--from-scratch"),
      std::string::npos);
  value_or_throw(write_atomically(files, step / "config.json", hf_config_from_spec(deeper).dump()));
  EXPECT_NE(message_of([&] { open_trained_model(step.string(), events); }), "");
  std::filesystem::remove(step / "manifest.json");
  EXPECT_NE(message_of([&] { open_trained_model((folder / "run").string(), events); }), "");
}

TEST(Convert, RejectsNonEmptyFolders) {
  const TemporaryFolder folder;
  NullSink events;
  RealFileSystem files;
  write_folder(folder / "a", spec_of(Family::gpt2));
  folder.write("file", "x");
  for (const char* target : {"a", "file"}) {
    const std::string said =
        message_of([&] { convert(conversion(folder / "a", folder / target), files, events); });
    EXPECT_NE(said.find("new or empty"), std::string::npos) << said;
  }
}

TEST(Convert, FullDiskLeavesNoModel) {
  const TemporaryFolder folder;
  NullSink events;
  write_folder(folder / "a", spec_of(Family::qwen3));
  int calls = 0;
  for (bool has_failed = true; has_failed; ++calls) {
    const Path to = folder / std::to_string(calls);
    FailingFileSystem files(calls);
    const std::string said = message_of([&] { convert(conversion(folder / "a", to), files, events); });
    has_failed = files.has_failed();
    EXPECT_EQ(said.find("No space left") != std::string::npos, has_failed) << said;
    if (!has_failed) open_trained_model(to.string(), events);
    if (has_failed) {
      EXPECT_FALSE(std::filesystem::exists(to / "config.json"));
      EXPECT_FALSE(std::filesystem::exists(to / "model.safetensors"));
    }
  }
  EXPECT_GT(calls, 8);
}

}  // namespace
}  // namespace optimus
