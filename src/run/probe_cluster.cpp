// Implements probe_cluster.h.
#include "run/probe_cluster.h"

#include <algorithm>
#include <chrono>

#include "cluster/open.h"
#include "cluster/standard.h"
#include "engine/probe_links.h"
#include "run/launched_rendezvous.h"
#include "run/probe_machine.h"
#include "rundir/worker_protocol.h"

namespace optimus {
namespace {

constexpr double kAllPairsSeconds = 4;  // time budget for all rounds together
constexpr Seconds kMaxPairSeconds{1.9};
constexpr Seconds kPartnerTimeout{15};

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

RendezvousOptions link_rendezvous_options(const ClusterProbe& probe) {
  return rendezvous_options({.launch = probe.launch,
                             .token_file = probe.options.token_file,
                             .store = probe.options.store,
                             .stop = probe.stop,
                             .timeout = Seconds(120)});
}

struct RankHost {
  ProbedHost host;
  int leader = 0;  // the first rank on this host
  std::string address;
};

// Returns the hosts in the order of their first ranks.
std::vector<RankHost> hosts_of(const std::vector<PresentRank>& ranks) {
  std::vector<RankHost> hosts;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto match = std::find_if(hosts.begin(), hosts.end(), [&](const RankHost& entry) {
      return entry.host.name == ranks[rank].host && entry.address == ranks[rank].address;
    });
    if (match != hosts.end())
      ++match->host.num_devices;
    else
      hosts.push_back({{ranks[rank].host, 1}, static_cast<int>(rank), ranks[rank].address});
  }
  return hosts;
}

LinkMeasurement rendezvous_of(const RendezvousResult& run, const std::vector<RankHost>& hosts, int host) {
  const int rounds = std::max(1, num_link_rounds(static_cast<int>(hosts.size())));
  return {.store = *run.store,
          .prefix = run.prefix,
          .secret = JsonView(run.settings, "rank 0's settings").at("secret").text(),
          .host = host,
          .num_hosts = static_cast<int>(hosts.size()),
          .address = hosts[static_cast<std::size_t>(host)].address,
          .pair_budget = Seconds(std::min(kMaxPairSeconds.value, kAllPairsSeconds / rounds)),
          .partner_timeout = kPartnerTimeout};
}

// Returns the devices and internal links of one host. They are measured now, were measured earlier, or come
// from a shipped device type and this machine's loopback interface.
HardwareProfile profile_of_node(const ProbeOptions& options, EventSink& events) {
  if (options.measures_devices) return probe_machine(options, events).hardware;
  std::error_code error;
  if (std::filesystem::exists(measured_cluster_path(), error)) return open_cluster("here").profile();
  const bool is_cuda = options.device.empty() ? has_cuda() : parse_device(options.device).is_cuda();
  const std::string vendor_name = is_cuda ? device_name(parse_device("cuda")) : "cpu";
  const std::optional<DeviceType> type =
      is_cuda ? find_type_by_vendor_name(vendor_name) : find_device_type("cpu");
  if (!type)
    throw UserError("no data for device {}; run optimus profile --hardware --links to measure it as well",
                    vendor_name);
  HardwareProfile node;
  node.name = "node", node.types = {*type}, node.groups = {standard_group(type->name, 0, 1)};
  if (!is_cuda) {
    NodeGroup& group = node.groups.front();
    group.domain_link = group.node_link = probe_loopback(events);
  }
  return node;
}

std::optional<ClusterProfile> lead_probe(const ClusterProbe& probe) {
  Rendezvous rendezvous(link_rendezvous_options(probe));
  HardwareProfile node;
  std::vector<RankHost> hosts;
  double seconds = 0;
  try {
    const double begin_time = now_seconds();
    node = profile_of_node(probe.options, probe.events);
    if (!probe.options.measures_devices) seconds = now_seconds() - begin_time;
    hosts = hosts_of(rendezvous.wait_for_others([](const std::string&) {}));
    if (hosts.size() < 2)
      throw UserError(
          "--links measures the network between hosts, but all {} ranks are on {}; use --hardware to measure "
          "one host",
          probe.launch.world_size, hosts.front().host.name);
  } catch (const ReportedError& error) {
    rendezvous.refuse(error.what());
    throw;
  }
  const RendezvousResult run = rendezvous.send_join_replies(Json{{"secret", generate_token()}});
  const LinkMeasurement measurement = rendezvous_of(run, hosts, 0);
  const double begin_time = now_seconds();
  probe.events.report(Progress{"measuring links", 0, std::ssize(hosts), "hosts"});
  measure_own_links(measurement);
  const double timeout_seconds =
      num_link_rounds(measurement.num_hosts) * (kPartnerTimeout.value + measurement.pair_budget.value + 10);
  ClusterProfile profile;
  profile.pairs = collect_pairs(measurement, Deadline::after(Seconds(timeout_seconds), "measured links"));
  profile.seconds = seconds + now_seconds() - begin_time;
  for (const RankHost& one : hosts) profile.hosts.push_back(one.host);
  profile.hardware = cluster_from_pairs(node, profile.hosts, profile.pairs);
  return profile;
}

void follow_probe(const ClusterProbe& probe) {
  const RendezvousResult run = join_rendezvous(link_rendezvous_options(probe));
  const std::vector<RankHost> hosts = hosts_of(run.ranks);
  for (std::size_t host = 0; host < hosts.size(); ++host)
    if (hosts[host].leader == probe.launch.rank)
      measure_own_links(rendezvous_of(run, hosts, static_cast<int>(host)));
}

}  // namespace

std::optional<ClusterProfile> probe_cluster(const ClusterProbe& probe) {
  if (probe.launch.world_size < 2)
    throw UserError(
        "--links measures the network between hosts; start it with a launcher that runs at least one rank on "
        "each host (docs/use/clusters.md)");
  if (probe.launch.rank == 0) return lead_probe(probe);
  follow_probe(probe);
  return std::nullopt;
}

}  // namespace optimus
