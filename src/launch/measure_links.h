// Measures the network between the hosts on which a launcher started ranks. One rank on each host sends
// messages of 1 B to 16 MiB in both directions. Not all pairs are measured: in round r, host h is paired with
// host h ^ 2^r, so each host is paired with log2(hosts) other hosts. All hosts measure in parallel. The speed
// of a host's link is the speed of its fastest pair. The switch between hosts is assumed to have full
// bisection bandwidth.
//
// The result is a HardwareProfile. The caller provides the devices and the links inside a host
// (run/probe_cluster.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "cluster/hardware.h"
#include "store/key_store.h"

namespace optimus {

int num_link_rounds(int num_hosts);
std::optional<int> partner_in_round(int host, int round, int num_hosts);

struct MessageTime {
  double bytes = 0, seconds = 0;  // one way
};
// `times` must have at least two entries in ascending order of size. The bandwidth is computed from the
// difference between the two largest messages, so that burst credits of a link do not distort it.
LinkSpec link_from_messages(const std::vector<MessageTime>& times);

struct LinkMeasurement {
  KeyStore& store;
  std::string prefix;  // prepended to all keys
  std::string secret;  // of this run; a peer that does not present it is rejected
  int host = 0, num_hosts = 0;
  std::string address;        // address at which other hosts reach this host
  Seconds pair_budget{1};     // measuring time of one pair, once it is connected
  Seconds partner_timeout{};  // how long a host waits for its partner
};

// Runs all rounds for one host. Called by one rank on the host. The failure of a pair is recorded in the
// store instead of being thrown.
void measure_own_links(const LinkMeasurement& measurement);

struct PairTimes {
  int first = 0, second = 0;  // hosts
  std::vector<MessageTime> times;
  std::string why;  // the reason if `times` is empty
};
// Returns the results that all hosts have recorded. Pairs without a result at the deadline are reported as
// failed.
std::vector<PairTimes> collect_pairs(const LinkMeasurement& measurement, const Deadline& deadline);

struct ProbedHost {
  std::string name;
  int num_devices = 0;
};
// Consecutive hosts with similar properties form one group. `node` provides the device type and all
// properties inside a host. Throws RuntimeFailure with the name of the host if no link of a host was
// measured.
HardwareProfile cluster_from_pairs(const HardwareProfile& node, const std::vector<ProbedHost>& hosts,
                                   const std::vector<PairTimes>& pairs);

}  // namespace optimus
