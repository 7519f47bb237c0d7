// Stands for Gloo's header of this name, of which c10d's header uses nothing.
#pragma once
