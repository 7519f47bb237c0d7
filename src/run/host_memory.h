// The first level of checkpoints of a run that a launcher has started on one or more hosts: each rank's boxes lie in its own host's
// memory, and a copy of them in the memory of the next host. So whatever one host loses, its processes or itself, the others have; files
// in the run's folder are the second level (checkpoint/save.h). Pure; who sends what to whom: neighbour_copies.h.
//
//   host 0                         host 1                         host 2
//   own: ranks 0 1, copies: 4 5    own: ranks 2 3, copies: 0 1    own: ranks 4 5, copies: 2 3
//
// RUN/memory.json names the folder, the same on every host, and the host of each rank:  FOLDER/host-0/step-41.tmp-part/rank-00000.safetensors …
// A resume takes it through the run's folder, which all share: each host brings what it has to RUN/memory (bring_host_memory),
// and when all boxes of a step are there they become a checkpoint like any other (take_host_memory).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/file.h"
#include "base/units.h"
#include "checkpoint/small_file.h"

namespace optimus {

struct HostMemory {
  Path folder;
  std::vector<int> host_of;  // [rank that stores]

  int num_hosts() const;
  // The first of a host's ranks does what is to be done once there.
  bool is_first_of_host(int rank) const;
  // Where the rank's host keeps a step.
  Path step_folder(int rank, std::int64_t step) const;
  // Whose boxes this rank keeps a copy of; and who keeps one of its own, nobody where there is one host.
  std::vector<int> copied_by(int rank) const;
  std::optional<int> keeper_of(int rank) const;
};

// Rank 0, before the others know of the run. The folder is one of a random name in `base`.
HostMemory announce_host_memory(FileSystem& files, const Path& run, const Path& base,
                                std::vector<int> host_of);
// Nothing when the run has none, or is a copy of the one that has.
std::optional<HostMemory> find_host_memory(const Path& run);
// On each rank: makes the folder, for its owner alone, and removes what earlier attempts left there. state: of the whole training. Throws
// UserError when there is not enough room for two steps of this host's part, or the folder is somebody else's.
void open_host_memory(const HostMemory& memory, int rank, Bytes state);
// Small files of a step, by the first rank of a host; and steps before it go.
Outcome<void> write_step_files(FileSystem& files, const Path& step_folder, const std::vector<SmallFile>& all);
void remove_steps_before(const Path& step_folder);
// What this host has of the run. With memory.json: by rank 0.
void remove_host_memory(const HostMemory& memory);
void remove_host_memory(const Path& run, bool with_list);

// On any process of each host, before the run goes on: copies what this host has and files have not. That something cannot be copied only
// means that it is not there.
void bring_host_memory(const Path& run);
// On one process, when all hosts have brought theirs: the newest step that is whole becomes a checkpoint in the run's folder, and is
// returned. Nothing when there is none. What was brought is removed.
std::optional<std::int64_t> take_host_memory(FileSystem& files, const Path& run);

}  // namespace optimus
