// Placeholder for the Gloo header of the same name. c10d's header includes it but uses nothing from it.
#pragma once
