// assign: who is who. A plan speaks of virtual devices; this chooses the physical device for each so that as
// many bytes as possible are already where they are needed. diff() then moves exactly the rest.
//
//   Example: ranks 0 1 hold layers a b. The new plan wants b on virtual 0 and a on virtual 1.
//   assign -> virtual 0 is device 1, virtual 1 is device 0: nothing moves.
//
// Devices that hold the same are one class, likewise virtual ranks that need the same, so the replicas of a
// data-parallel plan collapse; and classes that have nothing in common fall apart into independent parts. A
// part is solved exactly up to about a thousand classes on each side where all pairs have something in
// common, and up to many more where few have; above that greedily, with a bound.
#pragma once

#include <vector>

#include "layout/layout.h"

namespace optimus {

struct Assignment {
  std::vector<Rank> device_of;  // [virtual rank]: physical
  Bytes needed;                 // by all virtual ranks
  Bytes kept;                   // of that, where it is already: moved bytes are needed - kept
  Bytes kept_bound;             // no assignment keeps more
  bool is_exact = true;         // kept == kept_bound
};

struct AssignOptions {
  double max_work = 2e9;  // rows * pairs up to which a part is solved exactly: seconds
};

// `from` names physical devices, `to` virtual ranks 0 .. n-1; `available` are physical devices, at least n,
// in any order; they may be unknown to `from` (new and empty). Among devices of
// one class, virtual rank r gets device r. Throws UserError when there are too few devices, one comes twice,
// or a layout is not valid.
Assignment assign(const Layout& from, const Layout& to, const std::vector<Rank>& available,
                  const AssignOptions& options = {});

// The layout with its virtual ranks replaced by devices.
Layout with_devices(Layout layout, const std::vector<Rank>& device_of);

}  // namespace optimus
