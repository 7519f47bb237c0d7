// Owns the attributes and file actions of a posix_spawn call.
#pragma once

#include <spawn.h>

namespace optimus {

struct SpawnSettings {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  SpawnSettings() { ::posix_spawn_file_actions_init(&actions), ::posix_spawnattr_init(&attributes); }
  SpawnSettings(const SpawnSettings&) = delete;
  ~SpawnSettings() { ::posix_spawn_file_actions_destroy(&actions), ::posix_spawnattr_destroy(&attributes); }
};

}  // namespace optimus
