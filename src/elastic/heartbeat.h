// Keys in the run's store with which the process of a rank shows that it is alive and makes progress.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>

namespace optimus {

// The key of a rank's heartbeat (rank_watch.h). It is not updated if the process is stopped or has exited.
inline std::string heartbeat_key(int worker_id) { return fmt::format("heartbeat/{}", worker_id); }
// Set by the first rank that begins a step, because all ranks are connected at that point.
inline constexpr const char* kStartedKey = "begun";
// lost_key() is set by the last-will of a process when it exits, or by the run's host if the process hangs.
// Its value is kEnded if the process is known to have exited and did not merely stop responding.
inline constexpr const char* kEnded = "ended";
inline std::string lost_key(int worker_id) { return fmt::format("gone/{}", worker_id); }
// The address ("host:port") of the worker's standby store, which is used if the run's store is lost.
inline std::string standby_key(int worker_id) { return fmt::format("standby/{}", worker_id); }

// The content of a heartbeat.
struct Heartbeat {
  std::int64_t number = 0;
  std::int64_t step = 0;           // the step that this rank, and therefore every rank, has reached
  double waiting = 0;              // seconds that it has waited for other ranks
  std::string hang_description{};  // description of an operation that takes far too long; otherwise empty
};
std::string text(const Heartbeat& heartbeat);
// Returns nullopt if the text is invalid.
std::optional<Heartbeat> parse_heartbeat(const std::string& text);

}  // namespace optimus
