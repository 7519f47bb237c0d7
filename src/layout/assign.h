// assign_devices(): chooses the physical device for each virtual device of a plan, so that as many bytes as
// possible are already on the devices that need them. diff() then moves exactly the remaining bytes.
//
//   Example: ranks 0 and 1 hold layers a and b. The new plan needs b on virtual 0 and a on virtual 1.
//   assign -> virtual 0 is device 1, virtual 1 is device 0: nothing moves.
//
// Devices with equal contents form one class, and so do virtual ranks with equal needs, so the replicas of a
// data-parallel plan are one class. Classes that have no data in common separate into independent parts. A
// part is solved exactly for up to about a thousand classes on each side if all pairs have common data, and
// for many more if few pairs do. Larger parts are solved greedily, with an upper bound.
#pragma once

#include <vector>

#include "layout/layout.h"

namespace optimus {

struct Assignment {
  std::vector<Rank> device_of;  // the physical device of each virtual rank
  Bytes needed_bytes;           // bytes that all virtual ranks need, in total
  Bytes bytes_in_place;         // the part of `needed_bytes` that is already in place; the rest must move
  Bytes in_place_bound;         // upper bound of `bytes_in_place` for any assignment
  bool is_exact = true;         // bytes_in_place == in_place_bound
};

struct AssignOptions {
  // The largest rows * pairs for which a part is solved exactly; the default takes seconds.
  double max_work = 2e9;
};

// `from` refers to physical devices, `to` to virtual ranks 0 .. n-1. `available` lists at least n physical
// devices in any order; devices that are not in `from` are new and empty. If device r is in the class chosen
// for virtual rank r, rank r is assigned device r. Throws a UserError if there are too few devices, a device
// is listed twice, or a layout is invalid.
Assignment assign_devices(const Layout& from, const Layout& to, const std::vector<Rank>& available,
                          const AssignOptions& options = {});

// The layout with its virtual ranks replaced by physical devices.
Layout with_devices(Layout layout, const std::vector<Rank>& device_of);

}  // namespace optimus
