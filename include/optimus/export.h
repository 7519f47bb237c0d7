// Marks the symbols that the shared libraries export.
#pragma once

#define OPTIMUS_API __attribute__((visibility("default")))
