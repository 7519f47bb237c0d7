// JSON format of HardwareProfile. Keys that are not listed here are rejected.
//
//   {
//     "name": "lab",                          optional
//     "device_types": [{                      optional: new types, or types that replace built-in ones
//       "name": "h100", "memory": "80GiB",    sizes: a number of bytes or a string with a unit
//       "peak_flops": {"fp32": 67e12, "bf16": 989e12},   also fp64 tf32 fp16 fp8 fp4; dense, per second
//       "memory_bytes_per_second": 3.35e12,
//       "watts": 700, "price_per_hour": 2.5,             optional
//       "product_efficiency": [[128, 0.1], [8192, 0.7]], optional; [n of an n³ GEMM, fraction of peak], …
//       "kernels": [{"format": "bf16", "launch_seconds": 4e-6, "step_seconds": 1e-4,
//                    "tables": {"rope": {"axes": [[1e6]], "rates": [2e11]}, …}}]   optional; kernel_times.h
//     }],
//     "groups": [{                            identical nodes
//       "type": "h100",                       from device_types, or a built-in type
//       "devices": 512,
//       "devices_per_node": 8,                this and all below optional for built-in types: standard node
//       "devices_per_domain": 8,              joined by the fast link: part of a node, a node, or several
//       "domain_link": {"bytes_per_second": 450e9, "latency_seconds": 3e-6, "efficiency": [[4096, 0.1], …]},
//       "node_link": {…},                     within a node, between domains
//       "host_link": {…}, "host_memory": "2TiB",         per device, per node
//       "network": {"nics_per_node": 8, "bytes_per_second": 50e9, "latency_seconds": 6e-6, "efficiency": […],
//                   "oversubscription": 1},              bytes_per_second of one NIC
//       "island": 0                           optional
//     }],
//     "island_links": [{"islands": [0, 1], "bytes_per_second": 1.25e9, "latency_seconds": 0.02}],
//                                             one per pair of islands, total of all devices
//     "speed_factors": [[17, 0.5]],           optional; [device, speed relative to its type], …
//     "missing_devices": [8, 9]               optional
//   }
//
// Bandwidths are for one direction. A link in the file replaces the standard link completely.
#pragma once

#include <string>

#include "base/json.h"
#include "cluster/hardware.h"

namespace optimus {

// Reads and validates a profile. `source` is the file name that messages show. Throws a UserError.
HardwareProfile hardware_from_json(const Json& document, const std::string& source);

// Writes every value explicitly, so that hardware_from_json() returns the same profile.
OrderedJson to_json(const HardwareProfile& profile);

}  // namespace optimus
