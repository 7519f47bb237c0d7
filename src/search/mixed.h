// Plans whose layers differ in more than what is computed again: state sharded further only where memory demands it, the ends of the
// model cut in another way than its layers, and groups of layers that are computed again from one kept input.
#pragma once

#include "search/improve.h"

namespace optimus {

// From the best plan so far: the same with less sharding where memory is left, and with other ends.
void mix_layers(Improver& improver, const Ground& ground);

// From candidates that are quicker than the best plan but need too much memory (or from any, where no plan fits): sharded further in
// as few layers as lets them fit, or with groups of layers computed again together.
void make_fit(Improver& improver, const Demand& demand, Bounder& bounder, const GridResult& grid);

}  // namespace optimus
