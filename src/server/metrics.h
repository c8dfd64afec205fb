#pragma once

#include <string>

#include "engine/engine_stats.h"
#include "http/http_server.h"
#include "server/request_gate.h"

namespace weir {

// Everything that is counted, in Prometheus' text format.
std::string metrics_text(const EngineStats& engine, const GateStats& gate, const HttpStats& http);

}  // namespace weir
