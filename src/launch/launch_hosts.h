// `optimus launch`: the same command on several hosts, by ssh. The starting side (launch_on_hosts) opens a connection to each host and
// runs `optimus launch --here` there (launch_here), which starts the host's ranks. What they must know, the token among it, goes
// through the connection's input: a command line can be read by everybody on a host. That input is also their life line: when it
// ends, for whatever reason, the ranks of the host are ended.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/file.h"
#include "cluster/launcher.h"

namespace optimus {

struct LaunchOptions {
  std::string hosts;  // a,b,c
  int per_host = 1;
  std::string ssh = "ssh -o BatchMode=yes -o ConnectTimeout=20";
  std::string master;  // where the others reach the first host; empty: by its name
  int port = 0;        // of the store there; 0: one that is made up
  Path token_file{};
  std::string program;               // on all hosts
  std::vector<std::string> command;  // train …
};

// Until all hosts have ended; lines of their standard error get the host's name before them, standard output stays as it is (only rank
// 0 writes there). When one host fails the others are ended. Returns 0, 1 or 130.
int launch_on_hosts(const LaunchOptions& options, const Environment& environment,
                    const std::function<bool()>& is_interrupted);

// On a host: reads what to start from standard input. Returns 0, 1 or 130.
int launch_here(const std::function<bool()>& is_interrupted);

}  // namespace optimus
