#include "openai/schema_check.h"

#include <fmt/format.h>

#include <cmath>
#include <set>

#include "base/untrusted_json.h"

namespace weir::openai {
namespace {

constexpr size_t kMostBytes = 256 << 10;
constexpr double kMostVisits = 20000;    // of subschemas, lists of types multiplied out
constexpr int kMostReferences = 256;     // each copies the schema once
constexpr int kLongestChain = 32;        // of references to references
constexpr int kDeepest = 200;            // with what allOf refers to
constexpr size_t kMostProperties = 512;  // of one object: the grammar nests by them
constexpr size_t kLongestName = 256;     // of a property: the grammar nests by its letters
constexpr size_t kLongestPattern = 1024;
constexpr int64_t kMostRepetitions = 1999;  // what libllama's grammars allow

class SchemaCheck {
 public:
  explicit SchemaCheck(const Json& root) : root_(root) {}

  std::optional<std::string> run() {
    if (!root_.is_object()) return "the schema is not an object";
    if (const size_t bytes = dump(root_).size(); bytes > kMostBytes) {
      return fmt::format("the schema has {} bytes, more than {}", bytes, kMostBytes);
    }
    visit(root_, 1, 0);
    return problem_;
  }

 private:
  void fail(std::string message) {
    if (!problem_) problem_ = std::move(message);
  }

  // `times`: how often the conversion comes here.
  void visit(const Json& schema, double times, int depth) {
    if (problem_) return;
    if (depth > kDeepest) return fail("the schema is nested without end through allOf");
    visits_ += times;
    if (visits_ > kMostVisits) {
      return fail(fmt::format("the schema unfolds to more than {} parts", kMostVisits));
    }
    if (schema.is_array()) {
      for (const Json& element : schema) visit(element, times, depth + 1);
    } else if (schema.is_object()) {
      check_object(schema);
      const auto type = schema.find("type");
      if (type != schema.end() && type->is_array()) {
        times *= std::max<double>(1, static_cast<double>(type->size()));
      }
      for (const auto& [key, value] : schema.items()) {
        if (key.size() > kLongestName) {
          return fail(fmt::format("a name in the schema has {} bytes, more than {}", key.size(),
                                  kLongestName));
        }
        visit(value, times, depth + 1);
      }
      visit_all_of(schema, times, depth);
    }
  }

  // The conversion puts what allOf refers to in its place, every time it comes by. All other
  // references become rules of their own, made once.
  void visit_all_of(const Json& schema, double times, int depth) {
    const auto parts = schema.find("allOf");
    if (parts == schema.end() || !parts->is_array()) return;
    for (const Json& part : *parts) {
      visit_inlined(part, times, depth);
      if (const auto any = part.is_object() ? part.find("anyOf") : part.end();
          part.is_object() && any != part.end() && any->is_array()) {
        for (const Json& option : *any) visit_inlined(option, times, depth);
      }
    }
  }

  void visit_inlined(const Json& part, double times, int depth) {
    if (problem_ || !part.is_object()) return;
    // To the end of a chain of references, which check_reference has found to have one.
    const Json* target = nullptr;
    const Json* at = &part;
    while (at && at->is_object()) {
      const auto ref = at->find("$ref");
      if (ref == at->end() || !ref->is_string()) break;
      at = target = resolve(ref->get<std::string>());
    }
    if (target) visit(*target, times, depth + 1);
  }

  void check_object(const Json& schema) {
    if (schema.size() > kMostProperties) {
      return fail(fmt::format("an object of the schema has {} members, more than {}", schema.size(),
                              kMostProperties));
    }
    if (const auto ref = schema.find("$ref"); ref != schema.end()) check_reference(*ref);
    for (const char* key : {"enum", "type", "anyOf", "oneOf"}) {
      const auto choices = schema.find(key);
      if (choices != schema.end() && choices->is_array() && choices->empty()) {
        return fail(fmt::format("the schema's {} is empty, so that nothing is allowed", key));
      }
    }
    for (const char* key : {"minItems", "maxItems", "minLength", "maxLength"}) {
      check_integer(schema, key, 0, kMostRepetitions);
    }
    check_order(schema, "minItems", "maxItems");
    check_order(schema, "minLength", "maxLength");
    for (const char* key : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}) {
      check_bound(schema, key);
    }
    check_order(schema, "minimum", "maximum");
    check_pattern(schema);
  }

  // Only where the key is one of the schema's and not the name of a property.
  static const Json* number_at(const Json& schema, const char* key) {
    const auto found = schema.find(key);
    return found != schema.end() && found->is_number() ? &*found : nullptr;
  }

  void check_integer(const Json& schema, const char* key, int64_t least, int64_t most) {
    const Json* value = number_at(schema, key);
    if (!value) return;
    const std::optional<int64_t> number = json_integer(*value);
    if (!number || *number < least || *number > most) {
      fail(fmt::format("the schema's {} must be from {} to {}, and is {}", key, least, most,
                       dump(*value)));
    }
  }

  void check_bound(const Json& schema, const char* key) {
    const Json* value = number_at(schema, key);
    if (value && !(std::abs(value->get<double>()) <= 0x1p53)) {
      fail(fmt::format("the schema's {} is {}, beyond 2^53", key, dump(*value)));
    }
  }

  void check_order(const Json& schema, const char* low, const char* high) {
    const Json *least = number_at(schema, low), *most = number_at(schema, high);
    if (least && most && least->get<double>() > most->get<double>()) {
      fail(fmt::format("the schema's {} is {} and its {} is {}", low, dump(*least), high,
                       dump(*most)));
    }
  }

  void check_pattern(const Json& schema) {
    const auto pattern = schema.find("pattern");
    if (pattern != schema.end() && pattern->is_string() &&
        pattern->get_ref<const std::string&>().size() > kLongestPattern) {
      fail(fmt::format("a pattern of the schema has more than {} bytes", kLongestPattern));
    }
  }

  void check_reference(const Json& reference) {
    if (!reference.is_string()) return;
    if (++references_ > kMostReferences) {
      return fail(fmt::format("the schema has more than {} references", kMostReferences));
    }
    // A reference may lead back to where it is used; it may not lead to itself alone.
    std::string pointer = reference.get<std::string>();
    for (int length = 0;; ++length) {
      if (length == kLongestChain) {
        return fail("the reference " + quoted(reference) + " of the schema leads to no end");
      }
      const Json* target = resolve(pointer);
      if (!target)
        return fail("the reference " + quoted(reference) + " of the schema leads nowhere");
      if (!target->is_object()) return;
      const auto next = target->find("$ref");
      if (next == target->end() || !next->is_string()) return;
      pointer = next->get<std::string>();
    }
  }

  static std::string quoted(const Json& text) { return dump(text).substr(0, 100); }

  const Json* resolve(const std::string& pointer) const {
    if (pointer == "#") return &root_;
    if (!pointer.starts_with("#/")) return nullptr;
    const Json* at = &root_;
    for (size_t start = 2; start <= pointer.size();) {
      const size_t end = std::min(pointer.find('/', start), pointer.size());
      const std::string part = pointer.substr(start, end - start);
      if (at->is_object()) {
        const auto found = at->find(part);
        if (found == at->end()) return nullptr;
        at = &*found;
      } else if (at->is_array() && !part.empty() && part.size() < 7 &&
                 part.find_first_not_of("0123456789") == std::string::npos &&
                 std::stoul(part) < at->size()) {
        at = &(*at)[std::stoul(part)];
      } else {
        return nullptr;
      }
      start = end + 1;
    }
    return at;
  }

  const Json& root_;
  double visits_ = 0;
  int references_ = 0;
  std::optional<std::string> problem_;
};

}  // namespace

std::optional<std::string> schema_problem(const Json& schema) { return SchemaCheck(schema).run(); }

}  // namespace weir::openai
