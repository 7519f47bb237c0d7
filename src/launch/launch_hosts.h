// `optimus launch`: runs the same command on several hosts through ssh. The starting side (launch_on_hosts)
// opens a connection to each host and runs `optimus launch --here` there (launch_here), which starts the
// host's ranks. Settings, including the token, are sent through the connection's standard input, because a
// command line is visible to all users of a host. When that input ends for any reason, the ranks of the host
// are ended.
#pragma once

#include <string>
#include <vector>

#include "base/file.h"
#include "base/stop_token.h"
#include "cluster/launcher.h"

namespace optimus {

struct LaunchOptions {
  std::string hosts;  // a,b,c
  int per_host = 1;
  std::string ssh = "ssh -o BatchMode=yes -o ConnectTimeout=20";
  std::string master;  // address at which other hosts reach the first host; if empty, its name
  int port = 0;        // port of the store on the first host; 0 if chosen automatically
  Path token_file{};
  std::string program;               // the same path on all hosts
  std::vector<std::string> command;  // train …
};

// Runs until all hosts have ended. Lines of their standard error are prefixed with the host's name;
// standard output is passed through (only rank 0 writes there). When one host fails, the other hosts' ranks
// are ended. Returns 0, 1 or 130.
int launch_on_hosts(const LaunchOptions& options, const Environment& environment, const StopToken& stop);

// Called on each host: reads its settings from standard input and runs the host's ranks. Returns 0, 1 or
// 130.
int launch_here(const StopToken& stop);

}  // namespace optimus
