// Shared by the two files of the Megatron importer. Used only by the importers.
#pragma once

#include <string>
#include <vector>

#include "model/spec.h"
#include "plan/import.h"
#include "plan/import_arguments.h"

namespace optimus {

// The model that the command line describes. `is_bert` is true if the launched script trains BERT. Adds a
// note for each flag that is not applied. Throws a UserError that names the source.
ModelSpec imported_model(ArgumentList& flags, const std::string& source, const ImportRequest& request,
                         bool is_bert, std::vector<std::string>& notes);

}  // namespace optimus
