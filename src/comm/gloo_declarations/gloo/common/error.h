// Placeholder for Gloo's header of this name: c10d's header includes it but uses nothing from it.
#pragma once
