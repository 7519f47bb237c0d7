// Placeholder for Gloo's header of this name: c10d's header includes it and uses nothing of it.
#pragma once
