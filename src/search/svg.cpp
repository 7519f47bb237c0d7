// Draws a plan: one row per stage, with its devices and layers on the left, then its memory by category, and
// its slots over time on the right.
#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "plan/describe.h"
#include "plan/plan_json.h"
#include "search/report.h"

namespace optimus {
namespace {

constexpr double kLeft = 250, kMemoryWidth = 190, kTimeLeft = 470, kTimeWidth = 800, kTop = 96;
constexpr const char* kForward = "#4878a8";
constexpr const char* kBackward = "#d98a3d";
constexpr const char* kWeight = "#7aa974";
constexpr const char* kOther = "#b9b4ac";

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '<')
      result += "&lt;";
    else if (c == '&')
      result += "&amp;";
    else
      result += c;
  }
  return result;
}

class Drawing {
 public:
  void draw_text(double x, double y, const std::string& label, const char* attributes = "") {
    body_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, attributes, escaped(label));
  }
  void draw_box(double x, double y, double width, double height, const char* colour,
                const std::string& tooltip = "") {
    body_ += fmt::format("<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" fill=\"{}\">", x,
                         y, width, height, colour);
    if (!tooltip.empty()) body_ += "<title>" + escaped(tooltip) + "</title>";
    body_ += "</rect>\n";
  }
  void draw_path(const std::string& path_commands, const char* colour) {
    if (!path_commands.empty()) body_ += fmt::format("<path d=\"{}\" fill=\"{}\"/>\n", path_commands, colour);
  }
  std::string text(double width, double height) const {
    return fmt::format(
               "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
               "height=\"{1:.0f}\" font-family=\"Helvetica,Arial,sans-serif\" font-size=\"11\" "
               "fill=\"#333\">\n"
               "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
               width, height) +
           body_ + "</svg>\n";
  }

 private:
  std::string body_;
};

const char* colour_of(Work work) {
  switch (work) {
    case Work::forward:
      return kForward;
    case Work::backward:
    case Work::backward_input:
      return kBackward;
    case Work::backward_weight:
    case Work::update:
      return kWeight;
  }
  return kOther;
}

// Draws all slots of one color as one path. Slots that are closer together than a third of a pixel are
// merged.
std::string path_of_slots(const std::vector<SlotSpan>& slots, const Order& order, const char* colour,
                          double scale, double y, double height) {
  constexpr double kGap = 0.35;
  std::string path_commands;
  double begin = -1, end = -1;
  const auto flush = [&] {
    if (begin >= 0)
      path_commands += fmt::format("M{:.1f} {:.1f}h{:.1f}v{:.1f}H{:.1f}z", begin, y,
                                   std::max(0.2, end - begin), height, begin);
  };
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (colour_of(order[i].work) != colour) continue;
    const double from = kTimeLeft + slots[i].start * scale, to = kTimeLeft + slots[i].end * scale;
    const bool is_wide = to - from > 2;
    if (begin >= 0 && !is_wide && from - end < kGap) {
      end = to;
      continue;
    }
    flush();
    begin = from, end = is_wide ? to - 0.4 : to;
  }
  flush();
  return path_commands;
}

void draw_memory(Drawing& drawing, const StageMemory& memory, double limit, double y, double height) {
  const std::pair<const char*, Bytes> parts[] = {{"#5b5f97", memory.weights},
                                                 {"#8d91c7", memory.gradients},
                                                 {"#b8b8d1", memory.optimizer},
                                                 {"#ff9b71", memory.activations},
                                                 {"#ffcfb3", memory.buffers}};
  constexpr const char* kNames[] = {"weights", "gradients", "optimizer", "activations", "buffers"};
  double x = kLeft;
  drawing.draw_box(kLeft, y, kMemoryWidth, height, "#f1efec");
  for (std::size_t i = 0; i < std::size(parts); ++i) {
    const double width = static_cast<double>(parts[i].second.value) / limit * kMemoryWidth;
    drawing.draw_box(x, y, width, height, parts[i].first,
                     fmt::format("{}: {}", kNames[i], text(parts[i].second)));
    x += width;
  }
}

std::string stage_text(const Stage& stage) {
  std::string blocks;
  for (const Chunk& chunk : stage.chunks) {
    if (stage.chunks.size() > 3 && &chunk == &stage.chunks[1]) blocks += ", …";
    if (stage.chunks.size() > 3 && &chunk != &stage.chunks.front() && &chunk != &stage.chunks.back())
      continue;
    blocks += fmt::format("{}{}–{}", blocks.empty() ? "" : ", ", chunk.first_block(), chunk.end_block() - 1);
  }
  return blocks;
}

void draw_legend(Drawing& drawing) {
  double x = kTimeLeft;
  for (const auto& [name, colour] : {std::pair{"forward", kForward},
                                     {"backward", kBackward},
                                     {"weight gradient", kWeight},
                                     {"reduce, update", kOther}}) {
    drawing.draw_box(x, 58, 10, 10, colour);
    drawing.draw_text(x + 14, 67, name);
    x += 110;
  }
}

}  // namespace

std::string search_svg(const Demand& demand, const ClusterView& cluster_view, const SearchResult& result) {
  Drawing drawing;
  drawing.draw_text(16, 30, fmt::format("{} on {}", demand.model.name, cluster_view.cluster().name()),
                    "font-size=\"18\" font-weight=\"bold\"");
  drawing.draw_text(16, 50,
                    fmt::format("{}: {} per step, {} tokens/s, MFU {}", short_text(result.plan),
                                text(Seconds(result.step.seconds)),
                                short_count(result.step.tokens_per_second), percent(result.step.mfu)),
                    "font-size=\"13\"");
  draw_legend(drawing);
  drawing.draw_text(16, kTop - 10, "stage, devices, blocks", "font-weight=\"bold\"");
  drawing.draw_text(kLeft, kTop - 10, "memory per device", "font-weight=\"bold\"");
  drawing.draw_text(kTimeLeft, kTop - 10, "one step", "font-weight=\"bold\"");
  const double rows = static_cast<double>(result.step.stages.size());
  const double height = std::clamp(600 / rows, 4.0, 26.0), scale = kTimeWidth / result.step.seconds;
  double y = kTop;
  std::size_t index = 0;
  for (std::size_t p = 0; p < result.plan.pipelines.size(); ++p)
    for (std::size_t s = 0; s < result.plan.pipelines[p].stages.size(); ++s, ++index, y += height) {
      const Stage& stage = result.plan.pipelines[p].stages[s];
      const double inner = height * 0.84;
      if (height >= 9 || s % 4 == 0)
        drawing.draw_text(
            16, y + std::min(inner, 12.0),
            fmt::format("{}.{}  {} devices  {}", p, s,
                        with_commas(static_cast<std::int64_t>(stage.devices.size())), stage_text(stage)),
            height < 11 ? "font-size=\"8\"" : "");
      const Device device = cluster_view.map()[VirtualDevice{stage.devices.front()}];
      draw_memory(drawing, result.step.stages[index].memory,
                  static_cast<double>(cluster_view.cluster().type_of(device).memory.value), y, inner);
      const std::vector<SlotSpan>& slots = result.step.pipelines[p].slots[s];
      drawing.draw_box(kTimeLeft, y, kTimeWidth, inner, "#f7f6f4");
      for (const char* colour : {kForward, kBackward, kWeight})
        drawing.draw_path(path_of_slots(slots, result.step.orders[p][s], colour, scale, y, inner), colour);
      const double end = result.step.pipelines[p].stage_ends[s];
      drawing.draw_box(kTimeLeft + end * scale, y, std::max(0.0, result.step.seconds - end) * scale, inner,
                       kOther);
    }
  drawing.draw_text(kTimeLeft, y + 16, "0");
  drawing.draw_text(kTimeLeft + kTimeWidth, y + 16, text(Seconds(result.step.seconds)),
                    "text-anchor=\"end\"");
  drawing.draw_text(kLeft, y + 16, "0");
  drawing.draw_text(kLeft + kMemoryWidth, y + 16, "capacity", "text-anchor=\"end\"");
  return drawing.text(kTimeLeft + kTimeWidth + 24, y + 32);
}

}  // namespace optimus
