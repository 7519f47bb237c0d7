// The number formats in which devices can compute.
#pragma once

#include <string>

namespace optimus {

enum class NumberFormat { fp64, fp32, tf32, bf16, fp16, fp8, fp4 };
inline constexpr NumberFormat kAllFormats[] = {NumberFormat::fp64, NumberFormat::fp32, NumberFormat::tf32,
                                               NumberFormat::bf16, NumberFormat::fp16, NumberFormat::fp8,
                                               NumberFormat::fp4};
std::string text(NumberFormat format);  // "bf16"

}  // namespace optimus
