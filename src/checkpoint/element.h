// The element types of stored tensors, and their conversion to and from float and double. Values that the
// target type cannot represent are rounded to nearest even. Bytes are little-endian and do not have to be
// aligned. Read next: checkpoint/safetensors.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace optimus {

enum class ElementType { f64, f32, bf16, f16, i64, i32, i16, i8, u8, boolean };

std::string_view text(ElementType type);  // "BF16", as written in files
std::optional<ElementType> find_element_type(std::string_view name);
std::string element_type_names();  // "F64, F32, …", for messages
std::int64_t width(ElementType type);
bool is_float(ElementType type);

// Only for float types. bytes.size() must be values.size() * width(type).
void decode(ElementType type, std::span<const std::byte> bytes, std::span<float> values);
void decode(ElementType type, std::span<const std::byte> bytes, std::span<double> values);
void encode(ElementType type, std::span<const float> values, std::span<std::byte> bytes);
void encode(ElementType type, std::span<const double> values, std::span<std::byte> bytes);

}  // namespace optimus
