// SPDX-License-Identifier: MIT
#include "harness/plan.hpp"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "harness/error.hpp"
#include "harness/ranges.hpp"
#include "harness/text.hpp"

namespace attn {

extern const char* const presets_json;

namespace {

using nlohmann::json;

const json& presets() {
  static const json parsed = json::parse(presets_json);
  return parsed;
}

// Models whose sizes are not published are no presets; the file says why.
void refuse_unpublished(std::string_view name) {
  const json& reasons = presets()["unpublished"];
  const auto found = reasons.find(name);
  if (found == reasons.end()) return;
  usage_error(fmt::format("--preset: {}", found->get<std::string>()));
}

std::vector<const Entry*> select(const Selection& selection) {
  std::vector<std::string_view> names;
  for (const Entry& entry : registry()) names.push_back(entry.name);
  const auto matches = [&](std::string_view option, const std::string& glob) {
    std::set<std::string_view> hits;
    for (const std::string_view name : names) {
      if (matches_glob(glob, name)) hits.insert(name);
    }
    if (!hits.empty()) return hits;
    if (glob.find_first_of("*?[") == std::string::npos) entry_called(option, glob);  // which throws
    usage_error(fmt::format("{}: \"{}\" matches no backend; there are {}", option, glob,
                            fmt::join(names, ", ")));
  };
  std::set<std::string_view> chosen;
  for (const std::string& glob : selection.only) chosen.merge(matches("--only", glob));
  if (selection.only.empty()) {
    for (const Entry& entry : registry()) {
      if (!entry.peer) chosen.insert(entry.name);
    }
  }
  for (const std::string& glob : selection.skip) {
    for (const std::string_view name : matches("--skip", glob)) chosen.erase(name);
  }
  std::vector<const Entry*> entries;
  for (const Entry& entry : registry()) {
    if (chosen.contains(entry.name)) entries.push_back(&entry);
  }
  if (entries.empty())
    usage_error("--only and --skip leave no backend; `attnbench list` names all");
  return entries;
}

// Leaves a score, some hundreds at most, eight orders of magnitude to the end of f32.
constexpr double most_scale = 1e28;
// Far more than anybody waits for: an axis too many, or a range meant as two numbers.
constexpr std::size_t most_points = 100000;

// One grid: the cross product of its axes for every entry that takes part.
class Grid {
 public:
  Grid(const PlanOptions& options, const Axes& axes) : options_(options), axes_(axes) {}

  bool fitted = false;
  bool fit_long_curves = false;  // a one-thread curve with at least 7 n is fitted
  double cutoff_s = 5;
  std::int64_t n_max = most_n;

  void expand(const std::vector<const Entry*>& entries, std::vector<Point>& points) const {
    std::vector<std::int64_t> n_values = axis("n", "128:8192", 1);
    // A curve is one in n, so not where n_q or n_kv stands still.
    const bool curve = !axes_.contains("n-q") && !axes_.contains("n-kv") && n_values.size() >= 7;
    const bool fit = fitted || (fit_long_curves && curve);
    if (n_values.size() > 1 && options_.axes.contains("n") && axes_.contains("n-q") &&
        axes_.contains("n-kv")) {
      usage_error("--n: its values have no effect beside --n-q and --n-kv; leave out one of them");
    }
    for (const Entry* entry : entries) {
      std::vector<Problem> problems = {base_problem()};
      const auto cross = [&](auto member, auto values) {
        problems = product(problems, member, values);
      };
      const auto text_of = [](std::int64_t value) { return std::to_string(value); };
      cross(&Problem::dtype, [&](const Problem&) { return dtypes(); });
      cross(&Problem::mask, [&](const Problem&) { return masks(); });
      cross(&Problem::batch, [&](const Problem&) { return axis("batch", "1", 0); });
      cross(&Problem::heads, [&](const Problem&) { return axis("heads", "4", 1); });
      cross(&Problem::heads_kv,
            [&](const Problem& p) { return axis("heads-kv", text_of(p.heads), 1); });
      cross(&Problem::head_dim, [&](const Problem&) { return axis("head-dim", "64", 1); });
      cross(&Problem::head_dim_v,
            [&](const Problem& p) { return axis("head-dim-v", text_of(p.head_dim), 1); });
      cross(&Problem::d_model, [&](const Problem& p) {
        if (p.scope == Scope::core) return std::vector<std::int64_t>{0};
        return axis("d-model", text_of(p.heads * p.head_dim), 1);
      });
      cross(&Problem::threads, [&](const Problem&) { return thread_values(*entry); });
      cross(&Problem::n_kv, [&](const Problem&) { return n_values; });
      for (Problem& p : problems) {
        if (p.n_kv > n_max) continue;
        if (p.heads % p.heads_kv != 0) {
          usage_error(fmt::format("--heads-kv: {} does not divide --heads {}; use a divisor",
                                  p.heads_kv, p.heads));
        }
        p.n_q = single("n-q", p.regime == Regime::decode ? "1" : text_of(p.n_kv));
        p.n_kv = single("n-kv", text_of(p.n_kv));
        refuse_uncountable(p);
        for (const CacheMode cache : cache_modes(*entry)) {
          points.push_back(make_point(*entry, p, cache, fit));
        }
        refuse_many(points.size());
      }
    }
  }

 private:
  static constexpr std::int64_t most_n = (std::int64_t{1} << 31) - 1;

  [[nodiscard]] std::string text(const std::string& name, const std::string& fallback) const {
    const auto found = axes_.find(name);
    return found == axes_.end() ? fallback : found->second;
  }
  [[nodiscard]] std::vector<std::int64_t> axis(const std::string& name, const std::string& fallback,
                                               std::int64_t least) const {
    return parse_range("--" + name, text(name, fallback), least);
  }
  // --n-q and --n-kv take the place of n, point by point: one value.
  [[nodiscard]] std::int64_t single(const std::string& name, const std::string& fallback) const {
    const auto values = axis(name, fallback, 0);
    if (values.size() > 1) {
      usage_error(fmt::format("--{}: {} values; use one, and --n for a list", name, values.size()));
    }
    return values.front();
  }
  template <class E>
  [[nodiscard]] E word(const std::string& name, E fallback) const {
    return parse_word<E>("--" + name, text(name, std::string(name_of(fallback))));
  }
  [[nodiscard]] bool flag(const std::string& name, bool fallback) const {
    const std::string value = text(name, fallback ? "true" : "false");
    if (value != "true" && value != "false") {
      usage_error(fmt::format("--{}: \"{}\" is unknown; use true or false", name, value));
    }
    return value == "true";
  }
  [[nodiscard]] std::vector<Mask> masks() const {
    const std::string value = text("causal", "false");
    if (value == "both") return {Mask::none, Mask::causal};
    if (value == "true") return {Mask::causal};
    if (value == "false") return {Mask::none};
    usage_error(fmt::format("--causal: \"{}\" is unknown; use true, false or both", value));
  }
  [[nodiscard]] std::vector<DType> dtypes() const {
    std::vector<DType> values;
    for (const std::string& item : split(text("dtype", "f32"), ',')) {
      const auto value = parse_word<DType>("--dtype", item);
      if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
    }
    return values;
  }
  // Backends that do not use threads are measured on one, whatever was asked for.
  [[nodiscard]] std::vector<int> thread_values(const Entry& entry) const {
    std::vector<int> values = {options_.all_threads};
    if (text("threads", "all") != "all") {
      values.clear();
      for (const std::int64_t value : axis("threads", "", 1)) {
        values.push_back(static_cast<int>(std::min<std::int64_t>(value, options_.most_threads)));
      }
    }
    if (!entry.built() || !entry.backend.threaded) values = {1};
    return values;
  }

  // Whether there is a device is not asked: without one each of its rows says so.
  [[nodiscard]] std::vector<CacheMode> cache_modes(const Entry& entry) const {
    if (options_.cache) return {*options_.cache};
    if (entry.built() && entry.backend.memory == Memory::device) {
      return {CacheMode::warm, CacheMode::cold};
    }
    return {CacheMode::warm};
  }

  // Every count of work or memory has to fit 64 bits: an upper bound of all of them, in floating point.
  static void refuse_uncountable(const Problem& p) {
    const auto big = [](auto... factors) {
      return (1.0 * ... * (static_cast<double>(factors) + 1));
    };
    const std::int64_t widths = p.head_dim + p.head_dim_v;
    const double core = big(p.batch, p.heads, p.n_q, p.n_kv, widths);
    const double layer = big(p.batch, p.n_q + p.n_kv, p.d_model, p.heads * widths + p.d_model);
    if (64 * (core + layer) < 9e18) return;
    usage_error(
        fmt::format("--batch {} --heads {} --n {}: the work of one call does not fit 64 bits; use "
                    "smaller values",
                    p.batch, p.heads, std::max(p.n_q, p.n_kv)));
  }

  // What all problems of the grid have in common.
  [[nodiscard]] Problem base_problem() const {
    Problem p;
    p.scope = word<Scope>("scope", Scope::core);
    p.regime = word<Regime>("regime", Regime::prefill);
    p.output_projection = flag("output-projection", true) && p.scope == Scope::layer;
    if (axes_.contains("scale")) p.scale = parse_scale(axes_.at("scale"));
    for (const char* layers_alone : {"d-model", "output-projection"}) {
      if (p.scope == Scope::core && options_.axes.contains(layers_alone)) {
        usage_error(fmt::format("--{}: scope core has none; add --scope layer or leave it out",
                                layers_alone));
      }
    }
    return p;
  }

  // Each problem once with each of the values that `values` gives for it.
  template <class Member, class Values>
  std::vector<Problem> product(const std::vector<Problem>& problems, Member member,
                               Values values) const {
    std::vector<Problem> all;
    for (const Problem& problem : problems) {
      for (const auto value : values(problem)) {
        all.push_back(problem);
        all.back().*member = value;
      }
      refuse_many(all.size());
    }
    return all;
  }
  void refuse_many(std::size_t count) const {
    if (count <= most_points) return;
    std::string names;
    for (const auto& [name, unused] : options_.axes) names += fmt::format(" --{}", name);
    usage_error(
        fmt::format("{} make more than {} points; use fewer values", names.substr(1), most_points));
  }

  [[nodiscard]] Point make_point(const Entry& entry, Problem problem, CacheMode cache,
                                 bool fit) const {
    Point point;
    point.entry = &entry;
    point.fitted = fit && problem.threads == 1;
    point.cache = cache;
    point.dist = options_.dist;
    point.seed = options_.seed;
    point.cutoff_s = options_.cutoff_s.value_or(cutoff_s);
    Problem& p = point.problem = std::move(problem);
    if (entry.built()) p.memory = entry.backend.memory;
    if (entry.built() && !has_heads(point.family())) {
      // Recurrences and convolutions have neither heads nor a mask: equal problems, equal keys.
      p.heads = p.heads_kv = 1;
      p.n_kv = p.n_q;
      p.head_dim = p.head_dim_v = std::max<std::int64_t>(1, p.d_model);
      p.mask = Mask::none;
      p.scale.reset();
      p.output_projection = false;
    }
    name_point(point);
    return point;
  }

  const PlanOptions& options_;
  const Axes& axes_;
};

bool takes_part(const Entry& entry, const json& part) {
  if (!entry.built()) return part.value("list_unbuilt", false);
  const Backend& b = entry.backend;
  for (const json& choice : part.at("choose")) {
    const bool family = !choice.contains("family") || choice["family"] == name_of(b.family);
    const bool flags = (!choice.value("threaded", false) || b.threaded) &&
                       (!choice.value("exploits_sharing", false) || b.exploits_sharing) &&
                       (!choice.value("layer_default", false) || b.layer_default);
    if (family && flags) return true;
  }
  return false;
}

// The axis values of a part or shape: its keys with dashes for underscores, all as text.
Axes axes_of(const json& object) {
  Axes axes;
  for (const char* name :
       {"scope", "regime", "batch", "heads", "heads_kv", "head_dim", "head_dim_v", "d_model",
        "output_projection", "n", "n_q", "n_kv", "threads", "causal"}) {
    if (!object.contains(name)) continue;
    std::string option = name;
    std::replace(option.begin(), option.end(), '_', '-');
    axes[option] = object[name].is_boolean() ? (object[name].get<bool>() ? "true" : "false")
                                             : object[name].get<std::string>();
  }
  return axes;
}

void expand_sweep(const PlanOptions& options, const std::string& name,
                  const std::vector<const Entry*>& entries, std::vector<Point>& points) {
  const json& sweep = presets()["sweeps"][name];
  const json& parts = presets()["sweeps"][sweep.value("like", name)]["parts"];
  for (const json& part : parts) {
    std::vector<const Entry*> chosen;
    std::copy_if(entries.begin(), entries.end(), std::back_inserter(chosen),
                 [&](const Entry* entry) { return takes_part(*entry, part); });
    const Axes axes = axes_of(part);
    Grid grid(options, axes);
    grid.fitted = part.value("fitted", false);
    grid.cutoff_s = part.value("cutoff_s", 5.0);
    grid.n_max = sweep.value("n_max", grid.n_max);
    grid.expand(chosen, points);
  }
}

}  // namespace

double parse_scale(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !std::isfinite(value)) {
    usage_error(fmt::format("--scale: \"{}\" is not a finite number; use one like 0.125", text));
  }
  if (std::abs(value) > most_scale) {
    usage_error(fmt::format("--scale: {} times a score overflows f32; use one between -{} and {}",
                            text, most_scale, most_scale));
  }
  return value;
}

void name_point(Point& point) {
  const Problem& p = point.problem;
  point.key = fmt::format(
      "{}|{}|{}|{}|t{}|{}|nq{}|nkv{}|b{}|h{}|hkv{}|d{}|dv{}|dm{}|wo{}|w{}|{}|s{}|{}|{}|seed{}",
      point.entry->name, name_of(p.scope), name_of(p.regime),
      p.memory == Memory::device ? "device" : "cpu", p.threads, name_of(point.cache), p.n_q, p.n_kv,
      p.batch, p.heads, p.heads_kv, p.head_dim, p.head_dim_v, p.d_model, p.output_projection,
      p.width, p.mask == Mask::causal ? "causal" : "full", p.effective_scale(), name_of(p.dtype),
      name_of(point.dist), point.seed);
  point.id = fmt::format("{:012x}", hash_text(point.key) >> 16);
}

const Entry& entry_called(std::string_view context, std::string_view name) {
  std::vector<std::string> names;
  for (const Entry& entry : registry()) {
    if (entry.name == name) return entry;
    names.emplace_back(entry.name);
  }
  usage_error(
      fmt::format("{}: no backend is called \"{}\"; the nearest is {}, `attnbench list` names all",
                  context, name, nearest(name, names)));
}

bool matches_glob(const std::string& pattern, std::string_view text) {
  return fnmatch(pattern.c_str(), std::string(text).c_str(), 0) == 0;
}

std::uint64_t hash_text(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return hash;
}

std::string Point::label() const {
  const Problem& p = problem;
  std::string text = fmt::format("{}/{}", entry->name, name_of(p.scope));
  if (p.regime == Regime::decode) text += "/decode";
  text += p.n_q == p.n_kv || p.regime == Regime::decode
              ? fmt::format("/n:{}", p.n_kv)
              : fmt::format("/n_q:{}/n_kv:{}", p.n_q, p.n_kv);
  text += fmt::format("/batch:{}", p.batch);
  if (!entry->built() || has_heads(family())) {
    text += fmt::format("/heads:{}/heads_kv:{}/head_dim:{}", p.heads, p.heads_kv, p.head_dim);
    if (p.head_dim_v != p.head_dim) text += fmt::format("/head_dim_v:{}", p.head_dim_v);
  }
  if (p.scope == Scope::layer) text += fmt::format("/d_model:{}", p.d_model);
  if (p.mask == Mask::causal) text += "/causal";
  if (p.dtype != DType::f32) text += fmt::format("/{}", name_of(p.dtype));
  if (cache == CacheMode::cold) text += "/cold";
  return text + fmt::format("/threads:{}", p.threads);
}

std::string Point::repro_command() const {
  const Problem& p = problem;
  std::string text =
      fmt::format("attnbench run --only {} --scope {} --regime {} --n {} --batch {}", entry->name,
                  name_of(p.scope), name_of(p.regime), std::max<std::int64_t>(1, p.n_kv), p.batch);
  const bool no_keys = p.n_kv == 0;  // --n begins at 1
  if (no_keys || p.n_q != (p.regime == Regime::prefill ? p.n_kv : 1)) {
    text += fmt::format(" --n-q {}", p.n_q);
  }
  if (no_keys) text += " --n-kv 0";
  if (!entry->built() || has_heads(family())) {
    text += fmt::format(" --heads {} --heads-kv {} --head-dim {} --head-dim-v {}", p.heads,
                        p.heads_kv, p.head_dim, p.head_dim_v);
    if (p.mask == Mask::causal) text += " --causal true";
    if (p.scale) text += fmt::format(" --scale {}", *p.scale);
    if (p.scope == Scope::layer) {
      text += fmt::format(" --output-projection {}", p.output_projection);
    }
  }
  if (p.scope == Scope::layer) text += fmt::format(" --d-model {}", p.d_model);
  text += fmt::format(" --dtype {} --threads {} --seed {}", name_of(p.dtype), p.threads, seed);
  if (cache == CacheMode::cold || p.memory == Memory::device) {
    text += fmt::format(" --cache {}", name_of(cache));
  }
  if (dist != InputDist::normal) text += fmt::format(" --input-dist {}", name_of(dist));
  return text;
}

std::vector<PresetInfo> list_presets() {
  std::vector<PresetInfo> list;
  for (const auto& [name, sweep] : presets()["sweeps"].items()) {
    list.push_back({name, sweep["about"], true});
  }
  for (const auto& [name, shape] : presets()["shapes"].items()) {
    list.push_back(
        {name, shape["about"], false, shape.value("layers", 0), shape.value("source", "")});
  }
  return list;
}

PresetInfo shape_called(std::string_view name) {
  refuse_unpublished(name);
  std::vector<std::string> names;
  for (PresetInfo& preset : list_presets()) {
    if (preset.sweep) continue;
    if (preset.name == name) return std::move(preset);
    names.push_back(preset.name);
  }
  usage_error(fmt::format(
      "--preset: no shape is called \"{}\"; the nearest is {}, `attnbench list presets` names all",
      name, nearest(name, names)));
}

std::vector<Point> make_plan(const PlanOptions& options) {
  const std::vector<const Entry*> entries = select(options.selection);
  std::vector<Point> points;
  std::vector<std::string> names = options.presets;
  if (names.empty() && options.axes.empty()) names = {"default"};
  for (const std::string& name : names) {
    if (presets()["sweeps"].contains(name)) {
      if (!options.axes.empty()) {
        usage_error(
            fmt::format("--preset {} is a whole sweep and takes no axis options; leave out --{}",
                        name, options.axes.begin()->first));
      }
      expand_sweep(options, name, entries, points);
      continue;
    }
    if (!presets()["shapes"].contains(name)) {
      refuse_unpublished(name);
      std::vector<std::string> storage;
      for (const PresetInfo& preset : list_presets()) storage.push_back(preset.name);
      usage_error(fmt::format("--preset: \"{}\" is unknown; use one of {}", name,
                              fmt::join(storage, ", ")));
    }
    Axes axes = axes_of(presets()["shapes"][name]["axes"]);
    for (const auto& [option, value] : options.axes) axes[option] = value;
    Grid grid(options, axes);
    grid.fit_long_curves = true;
    grid.expand(entries, points);
  }
  if (names.empty()) {
    Grid grid(options, options.axes);
    grid.fit_long_curves = true;
    grid.expand(entries, points);
  }
  std::set<std::string> seen;
  std::erase_if(points, [&](const Point& point) { return !seen.insert(point.id).second; });
  if (points.empty())
    usage_error("the selection is empty: no chosen backend takes part; widen --only");
  return points;
}

}  // namespace attn
