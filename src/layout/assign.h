// assign_devices(): chooses the physical device for each virtual device of a plan, so that as many bytes as
// possible are already on the devices that need them. diff() then moves exactly the remaining bytes.
//
//   Example: device 0 holds layer a and device 1 holds layer b. The new plan needs b on virtual rank 0 and a
//   on virtual rank
//   1. assign_devices() chooses device 1 for virtual rank 0 and device 0 for virtual rank 1, so nothing
//   moves.
//
// Devices with equal contents form one class, and so do virtual ranks with equal needs, so the replicas of a
// data-parallel plan are one class. Classes with no data in common form independent components. A component
// is solved exactly for up to about a thousand classes on each side if all pairs have data in common, and for
// many more if few pairs do. Larger components are solved greedily, and the result includes an upper bound.
#pragma once

#include <vector>

#include "layout/layout.h"

namespace optimus {

struct Assignment {
  std::vector<Rank> device_of;  // the physical device of each virtual rank
  Bytes needed_bytes;           // bytes that all virtual ranks need, in total
  Bytes bytes_in_place;         // how many of the `needed_bytes` are already in place
  Bytes in_place_bound;         // upper bound on `bytes_in_place` for any assignment
  bool is_exact = true;         // bytes_in_place == in_place_bound
};

struct AssignOptions {
  // A component with more than this many rows * pairs is solved greedily. At the default limit, an exact
  // solution takes seconds.
  double max_work = 2e9;
};

// `from` refers to physical devices, `to` to virtual ranks 0 .. n-1. `available` lists at least n physical
// devices in any order; devices that are not in `from` are new and empty. Virtual rank r is assigned device r
// whenever device r is in the class chosen for that rank. Throws a UserError if there are too few devices, a
// device is listed twice, or a layout is invalid.
Assignment assign_devices(const Layout& from, const Layout& to, const std::vector<Rank>& available,
                          const AssignOptions& options = {});

// The layout with its virtual ranks replaced by physical devices.
Layout with_devices(Layout layout, const std::vector<Rank>& device_of);

}  // namespace optimus
