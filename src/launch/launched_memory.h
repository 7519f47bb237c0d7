// The hosts' memory (host_memory.h) around the work of a launcher's ranks: announced by rank 0, opened by each, removed when the run has
// ended well or the user has ended it. Without libtorch.
#pragma once

#include <functional>

#include "launch/hello.h"
#include "settings/settings.h"

namespace optimus {

// Rank 0, before the others know of the run; nothing without --memory-every. Throws UserError.
void announce_memory(const TrainOptions& options, const Path& run, const std::vector<PresentRank>& ranks);
// A rank's work with it. Throws what the work throws, and UserError when the memory cannot be had.
Json with_memory(const TrainSettings& settings, const TrainOptions& options, const Path& run, int rank,
                 const std::function<Json()>& work);
// The same of one that joins: the folder before it asks to, and its work.
void make_memory_of_comer(const TrainOptions& options, const Path& run);
Json removing_memory(const Path& run, const std::function<Json()>& work);

}  // namespace optimus
