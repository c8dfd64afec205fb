#include "geometry/model_source.h"

#include <sys/stat.h>

#include <cstring>

#include "base/mapped_file.h"
#include "base/quote.h"
#include "geometry/gguf_geometry.h"
#include "geometry/gguf_reader.h"
#include "geometry/hf_config.h"

namespace weir {
namespace {

Status in_file(const std::string& path, const Status& s) {
  return Status(s.code(), quote(path) + ": " + s.message());
}

bool is_directory(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

bool exists(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0;
}

// Name of the directory that holds `path`, or "" if the path does not say.
std::string directory_name(const std::string& path) {
  const size_t end = path.find_last_of('/');
  if (end == std::string::npos || end == 0) return "";
  const size_t start = path.find_last_of('/', end - 1);
  const std::string name = path.substr(start + 1, end - start - 1);
  return name == "." || name == ".." ? "" : name;
}

Result<ModelSource> read_file(const std::string& path) {
  const Result<MappedFile> file = MappedFile::open(path);
  if (!file) return file.error();
  const std::span<const std::byte> bytes = file->bytes();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  ModelSource source;
  if (text.starts_with("GGUF")) {
    source.kind = ModelSource::Kind::gguf;
    const Result<GgufFile> gguf = GgufFile::parse(bytes);
    if (!gguf) return in_file(path, gguf.error());
    Result<KvGeometry> geometry = geometry_from_gguf(*gguf);
    if (!geometry) return in_file(path, geometry.error());
    source.geometry = std::move(*geometry);
    source.label = source.geometry.name;
    return source;
  }
  const size_t first = text.substr(0, 4096).find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos || text[first] != '{') {
    return Status(Code::invalid_input, quote(path) + " is neither a GGUF file nor a config.json");
  }
  source.kind = ModelSource::Kind::hf_config;
  Result<KvGeometry> geometry = geometry_from_hf_config(text);
  if (!geometry) return in_file(path, geometry.error());
  source.geometry = std::move(*geometry);
  const std::string directory = directory_name(path);
  source.label = printable(directory.empty() ? source.geometry.name : directory, 120);
  return source;
}

}  // namespace

Result<ModelSource> open_model_source(const std::string& argument) {
  const Result<const ModelFacts*> facts = find_builtin(argument);
  if (facts) {
    return ModelSource{.kind = ModelSource::Kind::builtin,
                       .label = argument,
                       .geometry = geometry_of(**facts),
                       .facts = *facts};
  }
  if (is_directory(argument)) {
    const std::string config = argument + (argument.ends_with('/') ? "" : "/") + "config.json";
    if (!exists(config)) {
      return Status(Code::not_found, "the directory " + quote(argument) + " has no config.json");
    }
    return read_file(config);
  }
  if (exists(argument)) return read_file(argument);
  if (argument.find('/') != std::string::npos || argument.ends_with(".gguf") ||
      argument.ends_with(".json")) {
    return Status(Code::not_found, "there is no file " + quote(argument));
  }
  return facts.error();
}

}  // namespace weir
