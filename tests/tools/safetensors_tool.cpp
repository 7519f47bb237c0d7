// Lets the Python parity test use our reader and writer.
//
//   safetensors_tool copy IN OUT           every tensor and the metadata, as they are
//   safetensors_tool convert IN OUT TYPE [double]
//                                          float tensors through float (or double) as another type
//   safetensors_tool export FOLDER OUT TYPE LARGEST_SHARD
//                                          a Hugging Face folder's weights through logical tensors
#include <fmt/format.h>

#include <cstdio>

#include "base/error.h"
#include "checkpoint/hf_tensors.h"
#include "model/hf_config.h"

namespace optimus {
namespace {

ElementType type_of(const std::string& name) {
  const std::optional<ElementType> type = find_element_type(name);
  if (!type) throw UserError("{} is not one of {}", name, element_type_names());
  return *type;
}

void copy(const Path& from, const Path& to) {
  const SafetensorsFile file = SafetensorsFile::open(from);
  const std::vector<TensorHeader> headers(file.tensors().begin(), file.tensors().end());
  RealFileSystem files;
  SafetensorsWriter writer = value_or_throw(SafetensorsWriter::create(files, to, headers, file.metadata()));
  for (const StoredTensor& tensor : file.tensors()) value_or_throw(writer.write(tensor.bytes));
  value_or_throw(writer.commit());
}

template <typename Real>
void convert(const Path& from, const Path& to, ElementType type) {
  const SafetensorsFile file = SafetensorsFile::open(from);
  std::vector<TensorHeader> headers(file.tensors().begin(), file.tensors().end());
  for (TensorHeader& header : headers) header.type = type;
  RealFileSystem files;
  SafetensorsWriter writer = value_or_throw(SafetensorsWriter::create(files, to, headers));
  for (const StoredTensor& tensor : file.tensors()) {
    std::vector<Real> values(tensor.bytes.size() / static_cast<std::size_t>(width(tensor.type)));
    std::vector<std::byte> bytes(values.size() * static_cast<std::size_t>(width(type)));
    decode(tensor.type, tensor.bytes, std::span(values));
    encode(type, std::span<const Real>(values), std::span(bytes));
    value_or_throw(writer.write(bytes));
  }
  value_or_throw(writer.commit());
}

class PrintedWarnings final : public EventSink {
 public:
  void report(const Event& event) override {
    if (const auto* warning = std::get_if<Warning>(&event)) fmt::print("{}\n", warning->text);
  }
};

void export_folder(const Path& from, const Path& to, const HfExport& options) {
  const ModelSpec spec = read_hf_config(from);
  const SafetensorsFolder folder = SafetensorsFolder::open(from);
  PrintedWarnings warnings;
  check_hf_weights(folder, spec, warnings);
  RealFileSystem files;
  const ReadTensor<double> read = [&](const LogicalTensor& tensor, std::span<double> out) {
    read_logical(folder, tensor, out);
  };
  value_or_throw(write_hf_weights(files, to, logical_tensors(spec), read, options));
}

int run(const std::vector<std::string>& words) {
  if (words.size() == 3 && words[0] == "copy") {
    copy(words[1], words[2]);
  } else if (words.size() == 4 && words[0] == "convert") {
    convert<float>(words[1], words[2], type_of(words[3]));
  } else if (words.size() == 5 && words[0] == "convert") {
    convert<double>(words[1], words[2], type_of(words[3]));
  } else if (words.size() == 5 && words[0] == "export") {
    export_folder(words[1], words[2], {type_of(words[3]), parse_bytes(words[4], "LARGEST_SHARD")});
  } else {
    fmt::print(
        stderr,
        "usage: safetensors_tool copy IN OUT | convert IN OUT TYPE [double] | export FOLDER OUT TYPE SIZE\n");
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace optimus

int main(int argc, char** argv) {
  try {
    return optimus::run({argv + 1, argv + argc});
  } catch (const optimus::ReportedError& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
