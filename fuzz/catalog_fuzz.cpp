// Any bytes as a catalog entry: reading, checking and printing it must end in a value or one line.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "plan/catalog.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weir;
  const Result<CatalogEntry> entry =
      parse_catalog_entry({reinterpret_cast<const char*>(data), size});
  if (!entry) {
    const std::string& message = entry.error().message();
    WEIR_CHECK(!message.empty() && message.size() < 2000);
    WEIR_CHECK(message.find('\n') == std::string::npos);
    return 0;
  }
  const CatalogCheck check = check_catalog_entry(*entry);
  WEIR_CHECK(!catalog_checks_text({check}).empty() && !catalog_checks_json({check}).empty());
  WEIR_CHECK(!catalog_entry_text(*entry).empty() && !catalog_list_text({*entry}).empty());
  // What show prints is an entry again, and its derived figures are right.
  const Result<CatalogEntry> again = parse_catalog_entry(catalog_file(*entry));
  WEIR_CHECK(again.ok());
  for (const CatalogDisagreement& d : check_catalog_entry(*again).disagreements) {
    WEIR_CHECK(!d.where.starts_with("derived"));
  }
  return 0;
}
