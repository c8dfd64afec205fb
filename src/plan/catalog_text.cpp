#include <fmt/format.h>

#include <algorithm>

#include "plan/catalog.h"
#include "plan/plan_report.h"
#include "plan/text_table.h"

namespace weir {
namespace {

std::string bytes(const OrderedJson& json) { return format_bytes(Bytes{json.get<int64_t>()}); }

std::string percent(double ratio) { return fmt::format("{:.1f} %", 100 * ratio); }

// "+16.4 %": by how much a claim is off.
std::string excess(double claimed, double computed) {
  if (computed == 0) return "";
  return fmt::format(" ({:+.1f} %)", 100 * (claimed / computed - 1));
}

std::string amount(const CatalogClaim& claim, double value) {
  if (claim.query.figure == CatalogFigure::is_global) return value != 0 ? "global" : "local";
  return plain_number(value) + " " + claim.unit;
}

std::string claimed_and_computed(const ClaimCheck& check) {
  const CatalogClaim& claim = *check.claim;
  const size_t n = claim.points.size();
  std::string text;
  // Of many lengths the first and the last.
  for (const size_t i : n > 1 ? std::vector<size_t>{0, n - 1} : std::vector<size_t>{0}) {
    const CatalogClaim::Point& point = claim.points[i];
    const double computed = check.computed[i];
    text += (text.empty() ? "" : "; ") +
            (n > 1 ? "at " + std::to_string(point.tokens) + " " : std::string()) + "claimed " +
            amount(claim, point.claimed) + ", computed " + amount(claim, computed);
    if (!is_close(point.claimed, computed, claim.within) &&
        claim.query.figure != CatalogFigure::is_global) {
      text += excess(point.claimed, computed);
    }
  }
  return text;
}

// Every length of a claim about several.
std::string points_table(const ClaimCheck& check) {
  const CatalogClaim& claim = *check.claim;
  if (claim.points.size() < 2) return "";
  TextTable table({"tokens", "claimed", "computed"});
  for (size_t i = 0; i < claim.points.size(); ++i) {
    table.add({std::to_string(claim.points[i].tokens), amount(claim, claim.points[i].claimed),
               amount(claim, check.computed[i])});
  }
  return table.text("    ");
}

const char* verdict_words(Verdict verdict) {
  switch (verdict) {
    case Verdict::holds:
      return "holds";
    case Verdict::partly:
      return "holds in part";
    case Verdict::fails:
      return "does not hold";
  }
  return "";
}

std::string claim_line(const ClaimCheck& check) {
  const CatalogClaim& claim = *check.claim;
  std::string text = fmt::format("  {}: {}: {}. {}", claim.id, verdict_words(check.verdict),
                                 claimed_and_computed(check), claim.reason);
  if (!check.mistake.empty()) text += " (It is the figure of " + check.mistake + ".)";
  return text + "\n";
}

std::string heading(const CatalogEntry& entry) {
  return fmt::format("{} ({}){}", entry.facts.name, entry.facts.id,
                     entry.facts.verified ? "" : "   UNVERIFIED");
}

std::string kind_line(const char* name, const std::optional<LayerKindFacts>& kind, size_t n) {
  if (!kind) return "";
  return fmt::format("  {} {} layers: {} KV heads × {} + {}\n", n, name, kind->n_head_kv,
                     kind->head_dim_k, kind->head_dim_v);
}

std::string geometry_text(const CatalogEntry& entry, const OrderedJson& derived) {
  const ModelFacts& m = entry.facts;
  const size_t n_global = m.global_layers.size();
  std::string text = kind_line("global", m.global, n_global);
  text += kind_line("local", m.local, static_cast<size_t>(m.n_layers) - n_global);
  if (m.window) {
    text +=
        fmt::format("  window {}{}\n", *m.window, m.attention_kind == "chunked" ? " (chunks)" : "");
  }
  if (const int64_t own = derived["layers"]["owning_kv"]; own < m.n_layers) {
    text += fmt::format("  {} layers own KV, {} read an earlier layer's\n", own, m.n_layers - own);
  }
  if (const OrderedJson& n = derived["crossover_tokens"]; !n.is_null()) {
    text += fmt::format("  the global layers hold as much as the full windows at {} tokens\n",
                        n.get<int64_t>());
  }
  text += "  source: " + m.source + "\n";
  if (!m.notes.empty()) text += "  notes: " + m.notes + "\n";
  return text + "\n";
}

std::string figures_text(const OrderedJson& derived) {
  const OrderedJson& codecs = derived["codecs"];
  std::vector<std::string> head = {"K and V both stored"};
  std::vector<std::string> global = {"global per token"}, local = {"local windows"};
  for (const auto& [name, codec] : codecs.items()) {
    head.push_back(name);
    global.push_back(bytes(codec["global_bytes_per_token"]));
    local.push_back(bytes(codec["local_bytes"]));
  }
  head.insert(head.end(), {"f16 a token", "of uniform"});
  TextTable table(head);
  table.add(global);
  table.add(local);
  const OrderedJson& contexts = codecs["f16"]["contexts"];
  for (size_t i = 0; i < contexts.size(); ++i) {
    std::vector<std::string> row = {"total at " + short_tokens(contexts[i]["tokens"])};
    for (const auto& [name, codec] : codecs.items()) {
      row.push_back(bytes(codec["contexts"][i]["total_bytes"]));
    }
    row.push_back(plain_number(contexts[i]["effective_bytes_per_token"].get<double>()) + " B");
    row.push_back(percent(contexts[i]["ratio"]));
    table.add(row);
  }
  return table.text("  ");
}

// Bytes per token of global layers that keep the one projection of K and V once.
std::string stored_once_text(const OrderedJson& derived) {
  if (!derived.contains("global_stored_once")) return "";
  const OrderedJson& once = derived["global_stored_once"];
  const auto line = [&](const char* field, const char* what) {
    return once.contains(field)
               ? fmt::format("  stored once, {}: {} of global KV per token in f16\n", what,
                             format_bytes(Bytes{2 * once[field].get<int64_t>()}))
               : std::string();
  };
  return line("rotated_k_and_v_elements_per_token", "rotated part of K beside V") +
         line("v_elements_per_token", "V alone, K rotated when read");
}

std::string plural(size_t n, const char* one, const char* many) {
  return fmt::format("{} {}", n, n == 1 ? one : many);
}

}  // namespace

std::string catalog_list_text(const std::vector<CatalogEntry>& entries) {
  TextTable table({"model", "global", "local", "window", "f16 a token", "fixed", "context", "total",
                   "of uniform", "claims", "measured"});
  bool has_unverified = false;
  for (const CatalogEntry& entry : entries) {
    const ModelFacts& m = entry.facts;
    const OrderedJson derived = derived_figures(entry.geometry);
    const OrderedJson& f16 = derived["codecs"]["f16"];
    const auto count = [](size_t n) { return n > 0 ? std::to_string(n) : std::string("-"); };
    has_unverified |= !m.verified;
    table.add({m.id + (m.verified ? "" : " *"), std::to_string(m.global_layers.size()),
               std::to_string(static_cast<size_t>(m.n_layers) - m.global_layers.size()),
               m.window ? std::to_string(*m.window) : "-", bytes(f16["global_bytes_per_token"]),
               bytes(f16["local_bytes"]), short_tokens(m.max_context),
               bytes(f16["contexts"].back()["total_bytes"]),
               percent(f16["contexts"].back()["ratio"]), count(entry.claims.size()),
               count(entry.measured.size())});
  }
  return table.text("") + (has_unverified ? "* not read in the vendor's own files\n" : "");
}

std::string catalog_entry_text(const CatalogEntry& entry) {
  const OrderedJson derived = derived_figures(entry.geometry);
  std::string text = heading(entry) + "\n" + geometry_text(entry, derived) + figures_text(derived) +
                     stored_once_text(derived);
  const CatalogCheck check = check_catalog_entry(entry);
  for (const ClaimCheck& claim : check.claims) {
    text += fmt::format("\n  Claimed: {}\n  {}: {}\n  by {}\n  {}\n{}", claim.claim->says,
                        verdict_words(claim.verdict), claimed_and_computed(claim),
                        claim.claim->source, claim.claim->reason, points_table(claim));
  }
  for (const CatalogMeasurement& m : entry.measured) {
    text += fmt::format(
        "\n  Measured {}: {} resident after {} tokens in {}{}\n  {}\n", m.date,
        format_bytes(Bytes{m.resident_bytes}), m.tokens, kv_type_name(m.type),
        m.n_layers < entry.facts.n_layers ? fmt::format(", first {} layers", m.n_layers) : "",
        m.command);
  }
  return text;
}

std::string catalog_checks_text(const std::vector<CatalogCheck>& checks) {
  std::string text;
  size_t counts[3] = {}, n_claims = 0, n_measured = 0, n_disagreements = 0;
  for (const CatalogCheck& check : checks) {
    if (!check.claims.empty() || !check.disagreements.empty()) text += heading(*check.entry) + "\n";
    for (const ClaimCheck& claim : check.claims) {
      text += claim_line(claim);
      ++counts[static_cast<size_t>(claim.verdict)];
      ++n_claims;
    }
    for (const CatalogDisagreement& d : check.disagreements) {
      text += fmt::format("  DISAGREES {}: {}\n", d.where, d.what);
      ++n_disagreements;
    }
    n_measured += check.entry->measured.size();
  }
  return text + fmt::format("{}, {} ({} hold, {} in part, {} do not), {}, {}\n",
                            plural(checks.size(), "entry", "entries"),
                            plural(n_claims, "claim", "claims"), counts[0], counts[1], counts[2],
                            plural(n_measured, "measurement", "measurements"),
                            plural(n_disagreements, "disagreement", "disagreements"));
}

}  // namespace weir
