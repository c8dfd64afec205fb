// /v1/kv: where the memory is. /v1/kv/conversations: what is kept by name, and what can be done
// with it.
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/untrusted_json.h"
#include "engine/conversations.h"
#include "server/api_keys.h"
#include "server/serving.h"

namespace weir {
namespace {

using nlohmann::json;
using Writer = std::shared_ptr<ResponseWriter>;

HttpResponse json_response(const json& body, int status = 200) {
  return {
      status, "application/json", body.dump(-1, ' ', false, json::error_handler_t::replace), {}};
}

// --- /v1/kv ------------------------------------------------------------------------------------

json tenant_json(EngineCore& core, const ApiKeys* keys, uint32_t id) {
  json result = {{"bytes", core.cache().bytes_of(core.tenants().name_space(id)).v},
                 {"conversations", core.conversations().list(id).size()}};
  if (keys) {
    const TenantOptions& tenant = keys->tenants()[id];
    result["name"] = tenant.name;
    result["floor"] = tenant.floor.v;
    result["ceiling"] = tenant.ceiling.v;
  }
  return result;
}

json budget_json(const EngineStats& stats) {
  json tags = json::object();
  for (int i = 0; i < kTagCount; ++i) {
    tags[tag_name(static_cast<Tag>(i))] = stats.kv_by_tag[static_cast<size_t>(i)].v;
  }
  return {
      {"limit", stats.kv_limit.v},
      {"used", stats.kv_used.v},
      {"peak", stats.kv_peak.v},
      {"by_tag", tags},
      {"by_layer_kind", {{"global", stats.kv.held_global().v}, {"local", stats.kv.held_local().v}}},
      {"compute", stats.compute_bytes.v}};
}

json tier_json(const EngineStats& stats) {
  const TierCounters& traffic = stats.tier_traffic;
  json misses = json::object();
  for (int i = 0; i < kTierMissCount; ++i) {
    misses[tier_miss_name(static_cast<TierMiss>(i))] = traffic.misses[static_cast<size_t>(i)];
  }
  return {{"used", stats.tier.used.v},        {"capacity", stats.tier.capacity.v},
          {"records", stats.tier.records},    {"memory", stats.tier.memory.v},
          {"bytes_in", traffic.written.v},    {"bytes_out", traffic.read.v},
          {"lookups", traffic.loads},         {"hits", traffic.hits},
          {"hit_tokens", traffic.hit_tokens}, {"misses", misses}};
}

// An administrator sees the ledger and every tenant; the others see themselves.
json kv_json(EngineCore& core, const Serving& serving, const Caller& caller) {
  json result = {{"object", "kv"}, {"tenant", tenant_json(core, serving.keys, caller.tenant)}};
  if (!caller.is_admin) return result;
  const EngineStats stats = core.stats();
  result.update(budget_json(stats));
  if (stats.has_tier) result["tier"] = tier_json(stats);
  json tenants = json::array();
  for (size_t id = 0; id < core.tenants().size(); ++id) {
    tenants.push_back(tenant_json(core, serving.keys, static_cast<uint32_t>(id)));
  }
  result["tenants"] = std::move(tenants);
  return result;
}

// Bytes as a number, or with a unit as on the command line.
Result<Bytes> limit_of(const json& body) {
  const auto limit = body.find("limit");
  if (limit != body.end() && limit->is_string()) {
    return parse_bytes(limit->get_ref<const std::string&>());
  }
  if (limit != body.end() && limit->is_number_unsigned() &&
      limit->get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX)) {
    return Bytes{limit->get<int64_t>()};
  }
  return Status(Code::invalid_input, "give {\"limit\": BYTES}, a number or such as \"512MiB\"");
}

// --- /v1/kv/conversations --------------------------------------------------------------------

json conversation_json(const ConversationInfo& info) {
  json points = json::array();
  for (const ChainBytes::Point& point : info.restart_points) points.push_back(point.tokens);
  return {{"object", "kv.conversation"},
          {"name", info.name},
          {"tokens", info.tokens},
          {"cached_tokens", info.in_kv},
          {"unique_bytes", info.unique.v},
          {"shared_bytes", info.shared.v},
          {"restart_points", points},
          {"pinned", info.is_pinned},
          {"running", info.running},
          {"idle_seconds", std::round(info.idle_seconds * 1000) / 1000}};
}

HttpResponse refused(const Status& error) {
  // Here room is what pins and checkpoints may take, not the length of a prompt.
  if (error.code() == Code::over_budget) {
    return error_response(409, "invalid_request_error", "over_budget", error.message());
  }
  if (error.code() == Code::unavailable) {
    return error_response(409, "invalid_request_error", "conversation_running", error.message());
  }
  return response_to(error);
}

HttpResponse inspected(EngineCore& core, uint32_t tenant, const std::string& name) {
  const Result<ConversationInfo> info = core.conversations().inspect(tenant, name);
  return info ? json_response(conversation_json(*info)) : refused(info.error());
}

// The body's object; empty without a body. Nothing if it is something else.
std::optional<json> body_object(const HttpRequest& request) {
  if (request.body.empty()) return json::object();
  Result<json> body = parse_untrusted(request.body);
  if (!body || !body->is_object()) return std::nullopt;
  return std::move(*body);
}

// What is done with a conversation, on the engine's thread. Its answer is the conversation's
// description then, unless there is another.
using Deed = std::function<Result<std::string>(Conversations& all, uint32_t tenant,
                                               const std::string& name, const json& body)>;

Deed simple(Status (Conversations::*method)(TenantId, std::string_view)) {
  return [method](Conversations& all, uint32_t tenant, const std::string& name,
                  const json&) -> Result<std::string> {
    if (Status s = (all.*method)(tenant, name); !s.ok()) return s;
    return name;
  };
}

Result<std::string> checkpoint(Conversations& all, uint32_t tenant, const std::string& name,
                               const json&) {
  const Result<int64_t> tokens = all.checkpoint(tenant, name);
  if (!tokens) return tokens.error();
  return name;
}

Result<std::string> rewind(Conversations& all, uint32_t tenant, const std::string& name,
                           const json& body) {
  const auto tokens = body.find("tokens");
  if (tokens == body.end() || !tokens->is_number_unsigned() ||
      tokens->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    return Status(Code::invalid_input, "give {\"tokens\": N}, how many to keep");
  }
  if (Status s = all.rewind(tenant, name, tokens->get<int64_t>()); !s.ok()) return s;
  return name;
}

Result<std::string> fork(Conversations& all, uint32_t tenant, const std::string& name,
                         const json& body) {
  const auto to = body.find("to");
  if (to == body.end() || !to->is_string()) {
    return Status(Code::invalid_input, "give {\"to\": NAME}, the name of the fork");
  }
  const std::string fork_name = to->get<std::string>();
  if (Status s = all.fork(tenant, name, fork_name); !s.ok()) return s;
  return fork_name;
}

class Routes {
 public:
  Routes(Router& router, Serving& serving) : router_(router), serving_(serving) {}

  // `work` makes the answer between two steps; the handler does not wait for that.
  template <typename Work>
  void between_steps(std::string_view method, std::string_view pattern, Work work) {
    router_.add(method, pattern,
                [serving = &serving_, work](const HttpRequest& request, Writer writer) {
                  const auto name = request.params.find("name");
                  serving->engine.post(
                      [serving, work, writer = std::move(writer), caller = request.caller,
                       name = name == request.params.end() ? std::string() : name->second](
                          EngineCore& core) { writer->send(work(core, *serving, caller, name)); });
                });
  }

  void deed(const std::string& name, Deed deed) {
    router_.add("POST", "/v1/kv/conversations/{name}/" + name,
                [serving = &serving_, deed](const HttpRequest& request, Writer writer) {
                  const std::optional<json> body = body_object(request);
                  if (!body) {
                    writer->send(error_response(400, "invalid_request_error", {},
                                                "the body is not a JSON object"));
                    return;
                  }
                  serving->engine.post([deed, body = *body, writer = std::move(writer),
                                        tenant = request.caller.tenant,
                                        name = request.params.at("name")](EngineCore& core) {
                    const Result<std::string> shown =
                        deed(core.conversations(), tenant, name, body);
                    writer->send(shown ? inspected(core, tenant, *shown) : refused(shown.error()));
                  });
                });
  }

 private:
  Router& router_;
  Serving& serving_;
};

void set_limit(Serving& serving, const HttpRequest& request, const Writer& writer) {
  const std::optional<json> body = body_object(request);
  const Result<Bytes> limit = limit_of(body.value_or(json::object()));
  if (!limit) return writer->send(refused(limit.error()));
  serving.engine.post(
      [&serving, limit = *limit, writer, caller = request.caller](EngineCore& core) {
        const Status status = core.set_budget(limit);
        writer->send(status.ok() ? json_response(kv_json(core, serving, caller)) : refused(status));
      });
}

HttpResponse list_all(EngineCore& core, const Serving&, const Caller& caller, const std::string&) {
  json data = json::array();
  for (const ConversationInfo& info : core.conversations().list(caller.tenant)) {
    data.push_back(conversation_json(info));
  }
  return json_response({{"object", "list"}, {"data", std::move(data)}});
}

HttpResponse remove(EngineCore& core, const Serving&, const Caller& caller,
                    const std::string& name) {
  if (Status s = core.conversations().remove(caller.tenant, name); !s.ok()) return refused(s);
  return json_response({{"object", "kv.conversation.deleted"}, {"name", name}, {"deleted", true}});
}

}  // namespace

void add_kv_routes(Router& router, Serving& serving) {
  Routes routes(router, serving);
  routes.between_steps("GET", "/v1/kv",
                       [](EngineCore& core, const Serving& s, const Caller& caller,
                          const std::string&) { return json_response(kv_json(core, s, caller)); });
  router.add(
      "PUT", "/v1/kv",
      [&serving](const HttpRequest& request, Writer writer) {
        set_limit(serving, request, writer);
      },
      Access::admin);
  routes.between_steps("GET", "/v1/kv/conversations", list_all);
  routes.between_steps(
      "GET", "/v1/kv/conversations/{name}",
      [](EngineCore& core, const Serving&, const Caller& caller, const std::string& name) {
        return inspected(core, caller.tenant, name);
      });
  routes.between_steps("DELETE", "/v1/kv/conversations/{name}", remove);
  routes.deed("pin", simple(&Conversations::pin));
  routes.deed("unpin", simple(&Conversations::unpin));
  routes.deed("checkpoint", checkpoint);
  routes.deed("rewind", rewind);
  routes.deed("fork", fork);
}

}  // namespace weir
