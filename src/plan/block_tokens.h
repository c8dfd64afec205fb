#pragma once
#include "geometry/kv_geometry.h"
namespace weir { inline int choose_block_tokens(const KvGeometry&) { return 32; } }
