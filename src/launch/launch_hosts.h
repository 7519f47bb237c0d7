// `optimus launch`: runs the same command on several hosts through ssh. launch_on_hosts() connects to each
// host and runs `optimus launch --here` there (launch_here), which starts the ranks on that host. Settings,
// including the token, are sent through standard input, because command lines are visible to all users of a
// host. When this input is closed for any reason, the ranks on the host are stopped.
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

// Runs until the command has exited on all hosts. Lines from standard error are prefixed with the host name.
// Standard output is passed through, because only rank 0 writes to it. If one host fails, the ranks on the
// other hosts are stopped. Returns the exit code 0, 1 or 130.
int launch_on_hosts(const LaunchOptions& options, const Environment& environment, const StopToken& stop);

// Called on each host. Reads the settings from standard input and runs the ranks on this host. Returns the
// exit code 0, 1 or 130.
int launch_here(const StopToken& stop);

}  // namespace optimus
