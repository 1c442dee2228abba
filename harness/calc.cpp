// SPDX-License-Identifier: MIT
// `attnbench calc`: the lesson's calculators and worked examples, by the formulas of work.hpp.
// Arithmetic only: nothing here is measured.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "harness/command.hpp"
#include "harness/plan.hpp"
#include "harness/ranges.hpp"
#include "harness/text.hpp"
#include "harness/typeset.hpp"
#include "harness/work.hpp"
#include "harness/worked_example.hpp"

namespace attn {
namespace {

using Json = nlohmann::ordered_json;

// An attention layer at one or more n, and the model that it is one layer of.
struct Model {
  PresetInfo preset;  // of the shape; without one it has no `about` and no `source`
  std::int64_t layers = 1;
  std::vector<Problem> problems;  // layer scope, the same but for n

  [[nodiscard]] const Problem& shape() const { return problems.front(); }

  // What one layer has, times the layers.
  [[nodiscard]] std::int64_t all_layers(std::int64_t of_one) const {
    std::int64_t product = 0;
    if (__builtin_mul_overflow(layers, of_one, &product)) {
      usage_error(fmt::format("--layers: {} of these do not fit 64 bits; use fewer", layers));
    }
    return product;
  }
  [[nodiscard]] std::string layers_text() const;
};

// For people, and for programs.
struct Answer {
  std::string text;
  Json data;
};

std::string counted(std::int64_t count, const std::string& noun) {
  return fmt::format("{} {}{}", grouped(count), noun, count == 1 ? "" : "s");
}
std::string kv_heads(std::int64_t count) { return counted(count, "KV head"); }
std::string Model::layers_text() const { return counted(layers, "layer"); }

std::string sharing(std::int64_t heads, std::int64_t heads_kv) {
  return heads == 1 ? "one head" : heads_kv == heads ? "MHA" : heads_kv == 1 ? "MQA" : "GQA";
}

std::string heading(const Model& model) {
  const Problem& p = model.shape();
  std::string text = model.preset.name;
  if (!model.preset.about.empty()) text += ": " + model.preset.about;
  if (!model.preset.source.empty()) text += "\n  source: " + model.preset.source;
  const std::string width = p.head_dim == p.head_dim_v
                                ? grouped(p.head_dim)
                                : fmt::format("{} (values {})", p.head_dim, p.head_dim_v);
  return text + fmt::format("\n  d_model {}, {} of {}, {} ({}), {} W_O, {}\n", grouped(p.d_model),
                            counted(p.heads, "query head"), width, kv_heads(p.heads_kv),
                            sharing(p.heads, p.heads_kv), p.output_projection ? "with" : "no",
                            model.layers_text());
}

// ---- parameters ----------------------------------------------------------------------------------

Json count_json(std::int64_t parameters) {
  return {{"parameters", parameters}, {"bytes_f32", 4 * parameters}, {"bytes_f16", 2 * parameters}};
}

Answer params(const Model& model) {
  const Problem& p = model.shape();
  Problem head = p;
  head.heads = head.heads_kv = 1;
  head.output_projection = false;
  const std::int64_t of_head = tensor_elements(head, Family::attention).parameters();
  const TensorElements layer = tensor_elements(p, Family::attention);

  Rows rows = {{"", "parameters", "f32", "f16, bf16"}};
  const auto add = [&](const std::string& what, std::int64_t count) {
    rows.push_back({what, grouped(count), memory_text(count * bytes_per_element(DType::f32)),
                    memory_text(count * bytes_per_element(DType::f16))});
  };
  rows.push_back({"one head with K and V of its own"});
  add("  W_Q, W_K and W_V", of_head);
  add("  biases would add", bias_elements(head));
  rows.push_back({"one layer"});
  add("  W_Q, " + counted(p.heads, "head"), layer.w_q);
  add(fmt::format("  W_K, {}", kv_heads(p.heads_kv)), layer.w_k);
  add(fmt::format("  W_V, {}", kv_heads(p.heads_kv)), layer.w_v);
  add("  W_Q, W_K and W_V", layer.w_q + layer.w_k + layer.w_v);
  if (p.output_projection) add("  W_O", layer.w_o);
  add("  all of them", layer.parameters());
  add("  biases would add", bias_elements(p));
  if (model.layers > 1) add(model.layers_text(), model.all_layers(layer.parameters()));

  std::string text = "\n" + table(rows);
  if (p.heads_kv < p.heads) {
    text += fmt::format(
        "\n  {} changes W_K and W_V alone: with {} (MHA) they would have {} parameters,\n"
        "  {} times as many.\n",
        sharing(p.heads, p.heads_kv), kv_heads(p.heads),
        grouped(p.heads / p.heads_kv * (layer.w_k + layer.w_v)), p.heads / p.heads_kv);
  }
  Json data = {{"head", count_json(of_head)},
               {"head_biases", bias_elements(head)},
               {"w_q", layer.w_q},
               {"w_k", layer.w_k},
               {"w_v", layer.w_v},
               {"w_o", layer.w_o},
               {"layer", count_json(layer.parameters())},
               {"layer_biases", bias_elements(p)},
               {"model", count_json(model.all_layers(layer.parameters()))}};
  return {text, data};
}

// ---- KV cache ------------------------------------------------------------------------------------

Answer cache(const Model& model) {
  const Problem& p = model.shape();
  std::vector<std::int64_t> choices = {p.heads, p.heads_kv, 1};
  choices.erase(std::unique(choices.begin(), choices.end()), choices.end());

  Answer answer;
  Rows rows = {{""}};
  Rows shares = {{"share of MHA's"}};
  for (const std::int64_t heads_kv : choices) {
    rows[0].push_back(fmt::format("{}{}, {}", heads_kv == p.heads_kv ? "> " : "",
                                  sharing(p.heads, heads_kv), kv_heads(heads_kv)));
    shares[0].push_back(heads_kv == p.heads ? "1" : fmt::format("1/{}", p.heads / heads_kv));
  }
  const auto bytes = [&](DType dtype, std::int64_t heads_kv, std::int64_t batch, std::int64_t n) {
    Problem problem = p;
    problem.dtype = dtype;
    problem.heads_kv = heads_kv;
    problem.batch = batch;
    problem.n_kv = n;
    return kv_cache_bytes(problem, Family::attention);
  };
  for (const DType dtype : {DType::f16, DType::f32}) {
    rows.push_back({dtype == DType::f32 ? "f32" : "f16 or bf16"});
    const auto add = [&](const std::string& what, std::int64_t batch, std::int64_t n) {
      Rows lines = {{what + ", one layer"}, {what + ", " + model.layers_text()}};
      for (const std::int64_t heads_kv : choices) {
        const std::int64_t layer = bytes(dtype, heads_kv, batch, n);
        lines[0].push_back(memory_text(layer));
        lines[1].push_back(memory_text(model.all_layers(layer)));
      }
      rows.push_back(lines[0]);
      if (model.layers > 1) rows.push_back(lines[1]);
    };
    add("  one token", 1, 1);
    for (const Problem& at : model.problems) {
      const std::string batch = at.batch == 1 ? "" : grouped(at.batch) + " x ";
      add(fmt::format("  {}{} tokens", batch, grouped(at.n_kv)), at.batch, at.n_kv);
      for (const std::int64_t heads_kv : choices) {
        const std::int64_t layer = bytes(dtype, heads_kv, at.batch, at.n_kv);
        answer.data["cache"].push_back({{"n", at.n_kv},
                                        {"batch", at.batch},
                                        {"bytes_per_element", bytes_per_element(dtype)},
                                        {"heads_kv", heads_kv},
                                        {"layer_bytes", layer},
                                        {"model_bytes", model.all_layers(layer)}});
      }
    }
  }
  rows.push_back(shares[0]);
  answer.text =
      fmt::format("\n  K and V of one token in one layer: {} of {} + {} = {} elements\n\n",
                  kv_heads(p.heads_kv), p.head_dim, p.head_dim_v,
                  grouped(p.heads_kv * (p.head_dim + p.head_dim_v)));
  answer.text += table(rows) + "\n  > is the model's own.\n";
  return answer;
}

// ---- work ----------------------------------------------------------------------------------------

Answer flops(const Model& model) {
  Answer answer;
  Rows rows = {{"n", "Q, K, V", "Q Kᵀ", "A V", "W_O", "one layer", "core's share"}};
  if (model.layers > 1) rows[0].push_back(model.layers_text());
  rows[0].emplace_back("S in f32");
  const auto real = [](std::int64_t value) { return static_cast<double>(value); };
  for (const Problem& p : model.problems) {
    const AttentionFlops f = attention_flops(p);
    const std::int64_t layer = flops_model(p, Family::attention);
    const std::int64_t score_bytes = bytes_per_element(DType::f32) * score_elements(p);
    rows.emplace_back().push_back(grouped(p.n_q));
    for (const std::int64_t part : {f.projections, f.scores, f.mixing, f.output, layer}) {
      rows.back().push_back(prefixed(real(part)));
    }
    rows.back().push_back(fmt::format("{:.1f} %", 100 * real(f.core()) / real(layer)));
    if (model.layers > 1) rows.back().push_back(prefixed(real(model.layers) * real(layer)));
    rows.back().push_back(memory_text(score_bytes));
    answer.data["flops"].push_back({{"n", p.n_q},
                                    {"batch", p.batch},
                                    {"causal", p.mask == Mask::causal},
                                    {"projections", f.projections},
                                    {"scores", f.scores},
                                    {"mixing", f.mixing},
                                    {"output", f.output},
                                    {"core", f.core()},
                                    {"layer", layer},
                                    {"model", model.all_layers(layer)},
                                    {"score_bytes_f32", score_bytes}});
  }
  const Problem& first = model.problems.front();
  const Problem& last = model.problems.back();
  answer.text =
      fmt::format("\n  FLOPs at batch {}, {}; a multiply-add is two\n\n", grouped(first.batch),
                  first.mask == Mask::causal ? "causal" : "bidirectional");
  answer.text += table(rows, 0);
  if (model.problems.size() > 1) {
    const auto ratio = [&](auto count) {
      return grouped_real(real(count(last)) / real(count(first)));
    };
    answer.text += fmt::format(
        "\n  From n = {} to {}, {} times the tokens: the core has {} times the FLOPs,\n"
        "  the layer {} times, and S takes {} times the memory.\n",
        grouped(first.n_q), grouped(last.n_q), ratio([](const Problem& p) { return p.n_q; }),
        ratio([](const Problem& p) { return attention_flops(p).core(); }),
        ratio([](const Problem& p) { return flops_model(p, Family::attention); }),
        ratio(score_elements));
  }
  return answer;
}

// ---- crossovers ----------------------------------------------------------------------------------

Answer crossover(const Model& model) {
  const Problem& p = model.shape();  // n = 1: one token, one pair
  const AttentionFlops one = attention_flops(p);
  const auto projections = static_cast<double>(one.projections + one.output);
  const auto core = static_cast<double>(one.core());
  const TensorElements elements = [&] {
    Problem of_core = p;
    of_core.scope = Scope::core;
    return tensor_elements(of_core, Family::attention);
  }();

  Answer answer;
  std::vector<Lines> columns = {{"what is equal"}, {"at n"}, {""}};
  const auto add = [&](const char* key, const std::string& what, std::optional<double> n,
                       const char* where, const char* nowhere) {
    columns[0].push_back(what);
    columns[1].push_back(n ? grouped_real(*n) : "never");
    columns[2].emplace_back(n ? where : nowhere);
    answer.data[key] = n ? Json(*n) : Json();
  };
  add("core_equals_projections", "FLOPs of the core and of all projections",
      tokens_where_equal(projections, core, p.mask), "above it the core has the larger share",
      "the core has the larger share at every n");
  for (const auto& [family, key, layer] :
       {std::tuple{Family::rnn, "attention_equals_rnn", "an RNN layer"},
        std::tuple{Family::gru, "attention_equals_gru", "a GRU layer"},
        std::tuple{Family::lstm, "attention_equals_lstm", "an LSTM layer"}}) {
    const auto recurrence = static_cast<double>(flops_model(p, family));
    add(key, fmt::format("FLOPs of this layer and of {}", layer),
        tokens_where_equal(recurrence - projections, core, p.mask),
        "below it attention takes fewer", "attention takes more at every n");
  }
  const auto s = static_cast<double>(score_elements(p));
  add("scores_equal_kv", "elements of S and of K with V",
      tokens_where_equal(static_cast<double>(elements.k + elements.v), s, Mask::none),
      "above it S is larger", "S is larger at every n");
  add("scores_equal_x", "elements of S and of X",
      tokens_where_equal(static_cast<double>(p.d_model), s, Mask::none), "above it S is larger",
      "S is larger at every n");

  std::size_t width = 0;
  for (const std::string& n : columns[1]) width = std::max(width, n.size());
  for (std::string& n : columns[1]) n = fmt::format("{:>{}}", n, width);
  answer.text = fmt::format("\n  {}; recurrences of the same d_model\n\n",
                            p.mask == Mask::causal ? "causal" : "bidirectional");
  answer.text += beside(columns);
  answer.text +=
      "\n  This is arithmetic, not a measurement: equal FLOPs are not equal times, because a "
      "recurrence\n"
      "  takes its n steps one after another. Where measured curves cross, attnplot says:\n"
      "  `attnplot fit DIR` writes crossovers.csv.\n";
  return answer;
}

// ---- command line --------------------------------------------------------------------------------

struct Calculator {
  std::string name;
  std::string about;
  Answer (*answer)(const Model&);
  std::string n;  // by default; empty: n plays no part
  bool masked;    // causal or not makes a difference
  std::string examples;
};

const std::vector<Calculator>& calculators() {
  static const std::vector<Calculator> all = {
      {"params", "Parameters of an attention head, layer and model, and their bytes.", params, "",
       false,
       "  attnbench calc params --preset bert-base\n"
       "  attnbench calc params --d-model 512 --heads 1 --head-dim 64 --output-projection false\n"
       "  attnbench calc params --preset llama3-8b --heads-kv 32,8,1\n"},
      {"cache", "Bytes of the KV cache, beside those of MHA, GQA and MQA.", cache,
       "2048,8192,131072", false,
       "  attnbench calc cache --preset llama3-8b,llama2-70b\n"
       "  attnbench calc cache --preset llama3-70b --n 8k --batch 32\n"},
      {"flops", "FLOPs of an attention layer by part, and the memory of its scores.", flops,
       "128,512,2048,8192", true,
       "  attnbench calc flops --preset bert-base\n"
       "  attnbench calc flops --preset lesson --n 2k,32k --causal both\n"},
      {"crossover", "The n at which one part, or one kind of layer, overtakes another.", crossover,
       "", true,
       "  attnbench calc crossover --preset vaswani-base\n"
       "  attnbench calc crossover --d-model 256 --heads 1,4,16 --head-dim 64\n"},
  };
  return all;
}

std::vector<Model> models(const std::vector<std::string>& presets, const Axes& axes,
                          std::optional<std::int64_t> layers) {
  const auto& entries = registry();
  const auto any = std::find_if(entries.begin(), entries.end(), [](const Entry& entry) {
    return entry.built() && entry.backend.family == Family::attention;
  });
  if (any == entries.end())
    usage_error("calc: no attention backend is built, so nothing is planned");
  // Every backend has the same problems; the shapes of one are enough.
  PlanOptions options = {.selection = {.only = {std::string(any->name)}}, .axes = axes};
  const std::size_t values_of_n = parse_range("--n", axes.at("n"), 1).size();
  std::vector<Model> all;
  const auto add = [&](const PresetInfo& preset) {
    const std::vector<Point> points = make_plan(options);
    for (std::size_t first = 0; first < points.size(); first += values_of_n) {  // n varies fastest
      Model& model = all.emplace_back(
          Model{preset, layers.value_or(std::max<std::int64_t>(1, preset.layers)), {}});
      for (std::size_t i = 0; i < values_of_n; ++i) {
        model.problems.push_back(points[first + i].problem);
      }
    }
  };
  for (const std::string& name : presets) {
    options.presets = {name};
    add(shape_called(name));
  }
  if (presets.empty()) add({.name = "this shape", .about = "", .sweep = false});
  return all;
}

Exit calculate(const Calculator& calculator, const Words& args) {
  std::vector<std::string> presets;
  Axes axes;
  std::optional<std::int64_t> layers;
  bool as_json = false;
  CLI::App app{calculator.about, "attnbench calc " + calculator.name};
  app.add_option("--preset", presets, "models and shapes; `attnbench list presets` names all")
      ->delimiter(',')
      ->type_name("NAMES");
  const auto add_axis = [&](const std::string& name, const std::string& help) {
    app.add_option_function<std::string>(
           "--" + name, [&axes, name](const std::string& text) { axes[name] = text; }, help)
        ->type_name("VALUES");
  };
  add_axis("d-model", "elements of a token (heads x head-dim)");
  add_axis("heads", "query heads (4)");
  add_axis("heads-kv", "key and value heads, a divisor of --heads (as many)");
  add_axis("head-dim", "elements of a query and key, d_k (64)");
  add_axis("head-dim-v", "elements of a value, d_v (as head-dim)");
  add_axis("output-projection", "true (default) or false: the layer ends with W_O");
  if (calculator.masked) add_axis("causal", "true, false or both (false)");
  app.add_option("--layers", layers, "layers of the model (the preset's, else 1)")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 31))
      ->type_name("NUMBER");
  if (!calculator.n.empty()) {
    add_axis("n", fmt::format("tokens, like 128:8192 or 2k,32k ({})", calculator.n));
    add_axis("batch", "sequences (1)");
  }
  app.add_flag("--json", as_json, "exact numbers, for programs");
  app.footer("Lists give one answer for each shape. Examples:\n" + calculator.examples);
  parse(app, args);
  if (presets.empty() && axes.empty()) {
    usage_error(
        fmt::format("calc {}: name a model, like --preset bert-base, or give a shape, like "
                    "--d-model 512 --heads 8 --head-dim 64",
                    calculator.name));
  }
  if (axes.contains("batch")) parse_range("--batch", axes["batch"], 1);
  axes["scope"] = "layer";
  axes.try_emplace("n", calculator.n.empty() ? "1" : calculator.n);

  Json document = Json::array();
  std::string text;
  for (const Model& model : models(presets, axes, layers)) {
    const Answer answer = calculator.answer(model);
    text += (text.empty() ? "" : "\n") + heading(model) + answer.text;
    const Problem& p = model.shape();
    Json item = {
        {"preset", model.preset.name}, {"d_model", p.d_model},   {"heads", p.heads},
        {"heads_kv", p.heads_kv},      {"head_dim", p.head_dim}, {"head_dim_v", p.head_dim_v},
        {"layers", model.layers}};
    item.update(answer.data);
    document.push_back(item);
  }
  fmt::print("{}", as_json ? document.dump(1) + "\n" : text);
  return Exit::good;
}

Exit show_example(const Words& args) {
  std::string name;
  std::uint64_t seed = 1;
  bool as_json = false;
  CLI::App app{"A worked example of the lesson, every step computed and checked as it is printed.",
               "attnbench calc example"};
  app.add_option("name", name, "M9: by hand, 3 tokens; M10: 10 tokens, causal")
      ->required()
      ->check(CLI::IsMember({"M9", "M10"}, CLI::ignore_case));
  app.add_option("--seed", seed, "of M10's inputs (1)")
      ->check(CLI::NonNegativeNumber)
      ->type_name("NUMBER");
  app.add_flag("--json", as_json, "every matrix in full precision");
  parse(app, args);
  const bool by_hand = name.ends_with('9');
  if (as_json) {
    fmt::print("{}", json_of_head(by_hand ? example_m9() : example_m10(seed)));
  } else {
    fmt::print("{}", by_hand ? text_of_m9() : text_of_m10(seed));
  }
  return Exit::good;
}

std::string help() {
  std::string text =
      "The lesson's calculators and worked examples: arithmetic, nothing is measured.\n\n";
  for (const Calculator& calculator : calculators()) {
    text += fmt::format("  attnbench calc {:<14}{}\n", calculator.name, calculator.about);
  }
  text +=
      "  attnbench calc example M9    One head by hand: 3 tokens, small integers, every step.\n";
  text +=
      "  attnbench calc example M10   One causal head: 10 tokens, d_model 64, d_k "
      "16.\n\nExamples:\n";
  for (const Calculator& calculator : calculators()) text += calculator.examples;
  return text + "\nEach has --help.\n";
}

}  // namespace

Exit command_calc(const Words& args) {
  if (args.empty()) {
    usage_error(
        "calc: say what: params, cache, flops, crossover or example; `attnbench calc --help` "
        "explains");
  }
  if (args[0] == "--help" || args[0] == "-h") {
    fmt::print("{}", help());
    return Exit::good;
  }
  const Words rest(args.begin() + 1, args.end());
  if (args[0] == "example") return show_example(rest);
  std::vector<std::string> names = {"example"};
  for (const Calculator& calculator : calculators()) {
    if (args[0] == calculator.name) return calculate(calculator, rest);
    names.push_back(calculator.name);
  }
  usage_error(
      fmt::format("calc: nothing is called \"{}\"; the nearest is {}, `attnbench calc --help` "
                  "names all",
                  args[0], nearest(args[0], names)));
}

}  // namespace attn
