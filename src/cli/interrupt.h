#pragma once

#include "engine/engine.h"

namespace weir {

// Runs a request; Ctrl-C cancels it (a second one ends the program) instead of killing the process.
Reply run_interruptibly(Engine& engine, Request request, RequestEvents events);

}  // namespace weir
