// HardwareProfile as JSON. Keys that are not listed here are refused by name.
//
//   {
//     "name": "lab",                          optional
//     "device_types": [{                      optional: types that are not shipped, or differ from the
//     shipped
//       "name": "h100", "memory": "80GiB",    sizes: a number of bytes or a text with a unit
//       "peak_flops": {"fp32": 67e12, "bf16": 989e12},   also fp64 tf32 fp16 fp8 fp4; dense, per second
//       "memory_bytes_per_second": 3.35e12,
//       "watts": 700, "price_per_hour": 2.5,             optional
//       "product_efficiency": [[128, 0.1], [8192, 0.7]], optional; [edge of a cube, fraction of the peak], …
//       "kernels": [{"format": "bf16", "launch_seconds": 4e-6, "step_seconds": 1e-4,   optional; see kernel_times.h
//                    "tables": {"rope": {"axes": [[1e6]], "rates": [2e11]}, …}}]
//     }],
//     "groups": [{                            equal nodes
//       "type": "h100",                       of device_types, else a shipped one
//       "devices": 512,
//       "devices_per_node": 8,                this and all below optional for shipped types: their usual node
//       "devices_per_domain": 8,              joined by the fast link: part of a node, a node, or several
//       "domain_link": {"bytes_per_second": 450e9, "latency_seconds": 3e-6, "efficiency": [[4096, 0.1], …]},
//       "node_link": {…},                     inside a node, between domains
//       "host_link": {…}, "host_memory": "2TiB",         per device, per node
//       "network": {"nics_per_node": 8, "bytes_per_second": 50e9, "latency_seconds": 6e-6, "efficiency": […],
//                   "oversubscription": 1},              bytes_per_second of one NIC
//       "island": 0                           optional
//     }],
//     "island_links": [{"islands": [0, 1], "bytes_per_second": 1.25e9, "latency_seconds": 0.02}],
//                                             one for each pair of islands, all devices together
//     "speed_factors": [[17, 0.5]],           optional; [device, factor on what its type does], …
//     "missing_devices": [8, 9]               optional
//   }
//
// Bandwidths are one direction. A link that is given replaces the usual one as a whole.
#pragma once

#include <string>

#include "base/json.h"
#include "cluster/hardware.h"

namespace optimus {

// Throws UserError. The result is valid (see validate).
HardwareProfile hardware_from_json(const Json& document, const std::string& source);

// Everything explicit; hardware_from_json gives the same profile back.
OrderedJson to_json(const HardwareProfile& profile);

}  // namespace optimus
