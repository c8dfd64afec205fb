#pragma once

#include <string>

#include "model/model.h"

namespace weir {

// Names what a model's KV rows depend on besides tokens and layout, for tiers that outlive the
// process (EngineOptions::tier_model): every byte of the file, and the options that change rows.
// Reads the whole file, at one or two GB/s. Errors name the file: not_found, io_error.
Result<std::string> model_fingerprint(const std::string& path, const ModelOptions& options);

}  // namespace weir
