#pragma once

#include <string>

#include "base/status.h"
#include "plan/catalog.h"

namespace weir {

// Writes random weights of the model's shapes to a temporary file (the first
// `what.n_layers` layers), reads what.tokens random tokens, telling a terminal how far it is, and
// fills in the bytes that the KV store holds then, and the date. Errors: unsupported for a family
// without `weir synth`, io_error, invalid_input for a KV type the engine cannot use.
Result<CatalogMeasurement> measure_kv(const ModelFacts& facts, const CatalogMeasurement& what,
                                      int n_threads);

// An object of an entry's `measured` list, in one line. `target` and `n_layers` (of the whole
// model) are for the command.
std::string measurement_json(const CatalogMeasurement& m, const std::string& target, int n_layers);

}  // namespace weir
