// What joins the hosts of ranks that a launcher started, measured: messages of 1 B to 16 MiB there and back, between one rank of each
// host. Not all pairs: in round r host h talks to host h ^ 2^r, so that each meets log2(hosts) others, all hosts at once; a host's own
// link is as fast as the fastest of its pairs. The switch between them is believed to carry what its ports bring.
//
// What comes out is a HardwareProfile; devices and links inside a host come from whoever calls (run/probe_cluster.h).
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
// times: sizes ascend, at least two. The bandwidth is what the largest message takes longer than the one before it, so that what a
// link lends to a short burst does not count.
LinkSpec link_from_messages(const std::vector<MessageTime>& times);

struct LinkMeeting {
  KeyStore& store;
  std::string prefix;  // before all keys
  std::string secret;  // of this run: who does not say it is not talked to
  int host = 0, num_hosts = 0;
  std::string address;      // at which the others reach this host
  Seconds for_a_pair{1};    // a pair may take as long, once it has met
  Seconds for_a_partner{};  // how long one waits for the other
};

// The part of one host, by one of its ranks: all its rounds. A pair that fails is noted in the store; nothing is thrown for that.
void measure_own_links(const LinkMeeting& meeting);

struct PairTimes {
  int first = 0, second = 0;  // hosts
  std::vector<MessageTime> times;
  std::string why;  // no times: why not
};
// What all hosts have noted; those that note nothing until the deadline are pairs that failed.
std::vector<PairTimes> collect_pairs(const LinkMeeting& meeting, const Deadline& deadline);

struct ProbedHost {
  std::string name;
  int num_devices = 0;
};
// Neighbours that are alike are one group. `node` has the device type and everything inside a host. Throws UserError, naming it,
// when a host has no pair that was measured.
HardwareProfile cluster_from_pairs(const HardwareProfile& node, const std::vector<ProbedHost>& hosts,
                                   const std::vector<PairTimes>& pairs);

}  // namespace optimus
