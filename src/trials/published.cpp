// See published.h.
#include "trials/published.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "simulate/availability_builder.h"
#include "simulate/csv.h"

namespace optimus {
namespace {

struct CsvRow {
  const CsvTable& table;
  std::size_t number;
  const std::string& source;

  std::string location() const { return fmt::format("{}:{}", source, number + 2); }
  const std::string& text(std::string_view column) const {
    const std::string& cell = table.cell(number, column);
    if (cell.empty()) throw UserError("{}: column {} is empty", location(), column);
    return cell;
  }
  double value(const char* column) const { return trace_number(text(column), location(), column); }
  double value_or(const char* column, double fallback) const {
    const std::string& cell = table.cell(number, column);
    return cell.empty() ? fallback : trace_number(cell, location(), column);
  }
};

// Parses "… nodes the last configuration had (30 down to 15): 71.3 67.6 …;". Returns the seconds for each
// number of nodes, in ascending order of the number of nodes.
std::vector<double> seconds_by_nodes(const CsvRow& row) {
  const std::string& notes = row.table.cell(row.number, "notes");
  const auto from = notes.find("down to"), list = notes.find("):", from);
  if (from == std::string::npos || list == std::string::npos) return {};
  const std::string numbers = notes.substr(list + 2, notes.find(';', list) - list - 2);
  std::vector<double> seconds;
  for (const std::string& word : split(numbers, ' '))
    if (!trim(word).empty())
      seconds.push_back(trace_number(trim(word), row.location(), "reconfigure_s by nodes"));
  std::reverse(seconds.begin(), seconds.end());
  return seconds;
}

using SystemKey = std::pair<std::string, std::string>;  // system, model

void read_costs(PublishedSystem& published_system, const CsvRow& row) {
  ReconfigurationCosts& reconfiguration = published_system.reconfiguration;
  published_system.batch = row.value("global_batch");
  reconfiguration.reconfigure_seconds = row.value("reconfigure_s");
  reconfiguration.checkpoint_seconds = row.value_or("checkpoint_s", 0);
  reconfiguration.checkpoint_every =
      std::max(1, static_cast<int>(row.value_or("checkpoint_every_steps", 10)));
  reconfiguration.reconfigure_by_nodes = seconds_by_nodes(row);
  const std::size_t num_reconfigurations = reconfiguration.reconfigure_by_nodes.size(),
                    num_throughputs = published_system.throughput.samples_per_second.size();
  if (num_reconfigurations != 0 && num_reconfigurations != num_throughputs)
    throw UserError(
        "{}: expected one reconfiguration time per number of nodes; found {} times and {} numbers of nodes",
        row.location(), num_reconfigurations, num_throughputs);
}

void fill_throughput(Throughput& throughput, const std::map<int, double>& speeds,
                     const std::string& setting_name) {
  throughput.min_nodes = speeds.begin()->first;
  for (const auto& [nodes, speed] : speeds) {
    if (nodes != throughput.max_nodes() + 1)
      throw UserError("{}: the line for {} nodes is missing", setting_name, throughput.max_nodes() + 1);
    throughput.samples_per_second.push_back(speed);
  }
}

int nodes_in(const CsvRow& row) {
  constexpr double kMaxNodes = 1e5;
  const double nodes = row.value("nodes");
  if (!(nodes >= 1 && nodes <= kMaxNodes))
    throw UserError("{}: {} is an invalid number of nodes", row.location(), nodes);
  return static_cast<int>(nodes);
}

}  // namespace

PublishedTables PublishedTables::parse(std::string_view throughput, std::string_view costs,
                                       const std::string& throughput_source,
                                       const std::string& costs_source) {
  PublishedTables tables;
  std::map<SystemKey, std::map<int, double>> speeds;
  const CsvTable speed_table = parse_csv(throughput, throughput_source);
  for (std::size_t i = 0; i < speed_table.rows.size(); ++i) {
    const CsvRow row{speed_table, i, throughput_source};
    speeds[{row.text("system"), row.text("model")}][nodes_in(row)] = row.value("samples_per_s");
    std::vector<std::string>& models = tables.models_;
    if (std::find(models.begin(), models.end(), row.text("model")) == models.end())
      models.push_back(row.text("model"));
  }
  for (const auto& [key, speeds_by_nodes] : speeds)
    fill_throughput(tables.systems_[key].throughput, speeds_by_nodes,
                    fmt::format("{}: {} {}", throughput_source, key.first, key.second));
  const CsvTable cost_table = parse_csv(costs, costs_source);
  for (std::size_t i = 0; i < cost_table.rows.size(); ++i) {
    const CsvRow row{cost_table, i, costs_source};
    const SystemKey key{row.text("system"), row.text("model")};
    if (speeds.erase(key) == 0)
      throw UserError("{}: {} {} is listed twice or is missing from {}", row.location(), key.first,
                      key.second, throughput_source);
    read_costs(tables.systems_[key], row);
  }
  for (const auto& [key, speeds_by_nodes] : speeds)
    throw UserError("{}: no costs for {} {}", costs_source, key.first, key.second);
  return tables;
}

namespace {

// The model sizes, in parameters, for which durations have been published.
constexpr double kSizes[] = {0.34e9, 2.7e9, 6.7e9};

double interpolate(const double (&seconds)[3], double parameters) {
  if (parameters <= kSizes[0]) return seconds[0];
  if (parameters >= kSizes[2]) return seconds[2] * parameters / kSizes[2];
  const int index = parameters < kSizes[1] ? 0 : 1;
  const double fraction = (parameters - kSizes[index]) / (kSizes[index + 1] - kSizes[index]);
  return seconds[index] + fraction * (seconds[index + 1] - seconds[index]);
}

}  // namespace

ReconfigurationCosts reconfiguration_costs_of(System system, double parameters) {
  ReconfigurationCosts reconfiguration;
  switch (system) {
    case System::oobleck:
      reconfiguration.reconfigure_seconds = interpolate({2, 6, 10}, parameters);
      break;
    case System::varuna:
      reconfiguration.reconfigure_seconds = interpolate({78.7, 515, 701}, parameters);
      reconfiguration.checkpoint_seconds = interpolate({11.2, 50, 120}, parameters);
      break;
    case System::bamboo:
      reconfiguration.reconfigure_seconds = interpolate({76, 230, 450}, parameters);
      break;
    case System::ours:
      break;
  }
  return reconfiguration;
}

double published_parameters(const std::string& model) {
  static const std::map<std::string, double> parameters_by_name = {{"BERT-large", 0.34e9},
                                                                   {"GPT-2", 0.35e9},
                                                                   {"GPT-3 medium", 0.35e9},
                                                                   {"GPT-3 2.7B", 2.7e9},
                                                                   {"GPT-3 6.7B", 6.7e9}};
  const auto it = parameters_by_name.find(model);
  return it == parameters_by_name.end() ? 0 : it->second;
}

std::vector<std::string> PublishedTables::models() const { return models_; }

const PublishedSystem& PublishedTables::of(System system, const std::string& model) const {
  // This system is assumed to train as fast as Oobleck's templates.
  const std::string name = text(system == System::ours ? System::oobleck : system);
  const auto it = systems_.find({name, model});
  if (it == systems_.end())
    throw UserError("no published results of {} for {}; available models: {}", name, in_quotes(model),
                    fmt::join(models_, ", "));
  return it->second;
}

}  // namespace optimus
