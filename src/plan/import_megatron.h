// What the two files of the Megatron importer share. Used by import alone.
#pragma once

#include <string>
#include <vector>

#include "model/spec.h"
#include "plan/import.h"
#include "plan/import_arguments.h"

namespace optimus {

// is_bert: by the script that is started. Notes say what of the flags is not applied. Throws UserError, naming the source.
ModelSpec imported_model(ArgumentList& a, const std::string& source, const ImportRequest& request,
                         bool is_bert, std::vector<std::string>& notes);

}  // namespace optimus
