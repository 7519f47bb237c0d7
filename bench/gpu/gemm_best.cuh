// Searches for the fastest configuration of one GEMM and reports results: tables, totals of a step, JSON. The
// phases are described at the top of gemm_search.cu.
#pragma once

#include <set>

#include "gemm_measure.cuh"

// ------------------------------------------------------------------------------------------------ the search
struct SearchOptions {
  bool is_weight_grad = false, with_gemm_ex = true;
  double screen_s = 2.0;
  int finalists = 4, select_rounds = 5;
};

struct Outcome {
  std::vector<Variant> variants;
  std::vector<Candidate> finalists;  // [0] is the library's default
  bool is_checked = true;
  int screened = 0, offered = 0;
  std::string offered_by;  // heuristic results of each variant
  int best[2] = {-1, -1};  // by storage, index into finalists
  double seconds = 0;

  double default_ms() const { return median(finalists[0].confirm_ms); }
  double gemm_ex_ms() const {
    for (const Candidate& c : finalists)
      if (c.is_gemm_ex()) return median(c.select_ms);
    return std::numeric_limits<double>::infinity();
  }
  double best_ms(Storage s) const {
    return best[s] < 0 ? std::numeric_limits<double>::infinity() : median(finalists[best[s]].confirm_ms);
  }
};

// Measures the first `count` candidates, which must be the fastest so far, again for longer and sorts them.
inline void rescreen(const Device& dev, std::vector<Candidate>& sorted, size_t count) {
  std::vector<Candidate*> contestants;
  for (size_t i = 0; i < std::min(count, sorted.size()); ++i) contestants.push_back(&sorted[i]);
  rounds(dev, contestants, &Candidate::rescreen_ms, 2, 0, 15);
  for (Candidate* c : contestants) c->screen_ms = median(c->rescreen_ms);
  std::sort(sorted.begin(), sorted.begin() + contestants.size(),
            [](const Candidate& a, const Candidate& b) { return a.screen_ms < b.screen_ms; });
}

inline std::vector<Candidate> screen_all(const Device& dev, Outcome& out, const SearchOptions& options,
                                         double default_ms) {
  std::vector<std::vector<Algo>> offers;
  for (const Variant& v : out.variants) {
    offers.push_back(v.plan->heuristics(kSearchWorkspace, kHeuristicResults));
    out.offered += int(offers.back().size());
    out.offered_by +=
        format("%s/%s %zu  ", kStorageNames[v.storage], v.is_row ? "row" : "col", offers.back().size());
  }
  const double start = seconds_now(), stop = start + options.screen_s;
  std::vector<Candidate> done;
  std::set<std::string> seen;
  double best_ms = default_ms;
  auto consider = [&](Candidate c) {
    if (!seen.insert(c.key()).second) return;
    screen(dev, c, best_ms);
    best_ms = std::min(best_ms, c.screen_ms);
    ++out.screened;
    if (std::isfinite(c.screen_ms)) done.push_back(std::move(c));
  };
  // Alternates between variants by heuristic rank, so that a short screen still covers the likely candidates.
  // A third of the time is reserved for variations.
  const double heuristics_stop = dev.vary ? start + options.screen_s * 0.67 : stop;
  for (size_t rank = 0; rank < size_t(kHeuristicResults); ++rank)
    for (size_t v = 0; v < offers.size(); ++v)
      if (rank < offers[v].size() && seconds_now() < heuristics_stop)
        consider({format("heur%zu", rank), &out.variants[v], offers[v][rank]});
  auto by_time = [](const Candidate& a, const Candidate& b) { return a.screen_ms < b.screen_ms; };
  std::sort(done.begin(), done.end(), by_time);
  if (dev.vary) {
    const std::vector<Candidate> bases(done.begin(), done.begin() + std::min<size_t>(3, done.size()));
    for (const Candidate& base : bases)
      for (Candidate& c : variations(base, options.is_weight_grad))
        if (seconds_now() < stop) consider(std::move(c));
    std::sort(done.begin(), done.end(), by_time);
  }
  rescreen(dev, done, 12);
  return done;
}

// Selects the fastest candidates with correct results, at least one for each storage that was searched.
inline void choose_finalists(const Device& dev, std::vector<Candidate>& screened, Outcome& out, int count) {
  int wanted_kn = 0;
  for (const Variant& v : out.variants) wanted_kn = wanted_kn || v.storage == kKN;
  int capacity[2] = {count - wanted_kn, wanted_kn ? count - 2 : 0}, taken = 0;
  const std::string default_key = out.finalists[0].key();
  for (Candidate& c : screened) {
    int& left = capacity[c.variant->storage];
    if (taken == count || left == 0 || c.key() == default_key) continue;
    if (!passes_check(dev, c) && out.is_checked) continue;
    --left, ++taken;
    out.finalists.push_back(std::move(c));
  }
}

inline Outcome search(const Device& dev, const std::vector<Gemm>& by_storage, const SearchOptions& options) {
  const double start = seconds_now();
  Outcome out;
  for (size_t s = 0; s < by_storage.size(); ++s)
    for (const Gemm& p : {by_storage[s], by_storage[s].transposed()}) {
      if (!p.out.is_column_major() && p.epilogue != CUBLASLT_EPILOGUE_DEFAULT) continue;
      out.variants.push_back(
          {std::make_unique<Plan>(dev.lt, p, dev.memory.workspace), Storage(s), !p.out.is_column_major()});
    }
  const auto first =
      std::find_if(out.variants.begin(), out.variants.end(), [](auto& v) { return !v.is_row; });
  const std::vector<Algo> defaults = first->plan->heuristics(kDefaultWorkspace, 1);
  if (defaults.empty()) throw std::runtime_error("the library offers no algorithm");
  cuda_ok(cudaMemset(first->plan->gemm.out.data, 0, first->plan->gemm.out_bytes()), "clear");

  out.finalists.push_back({"default", &*first, defaults[0]});
  screen(dev, out.finalists[0], std::numeric_limits<double>::infinity());
  out.is_checked = passes_check(dev, out.finalists[0]);
  if (!out.is_checked) printf("    the library's default fails the check: this GEMM is measured unchecked\n");
  if (options.with_gemm_ex) {
    Candidate c{"gemmEx", &*first};
    screen(dev, c, std::numeric_limits<double>::infinity());
    if (std::isfinite(c.screen_ms) && (passes_check(dev, c) || !out.is_checked))
      out.finalists.push_back(std::move(c));
  }
  std::vector<Candidate> screened = screen_all(dev, out, options, out.finalists[0].screen_ms);
  choose_finalists(dev, screened, out, options.finalists);

  std::vector<Candidate*> contestants;
  for (Candidate& c : out.finalists) contestants.push_back(&c);
  rounds(dev, contestants, &Candidate::select_ms, options.select_rounds, 0, 60);
  for (size_t i = 0; i < out.finalists.size(); ++i) {
    int& best = out.best[out.finalists[i].variant->storage];
    if (best < 0 || median(out.finalists[i].select_ms) < median(out.finalists[best].select_ms)) best = int(i);
  }
  contestants = {&out.finalists[0]};
  for (int best : out.best)
    if (best > 0) contestants.push_back(&out.finalists[best]);
  rounds(dev, contestants, &Candidate::confirm_ms, 3, 30, 70);
  out.seconds = seconds_now() - start;
  return out;
}

// ------------------------------------------------------------------------------------------------ results
struct Row {
  std::string case_name, linear, pass;
  int64_t m, n, k;
  int count;
  double flops;
  double separate_ms = 0;  // epilogue rows: elementwise kernels that the epilogue replaces
  double plain_ms = 0;     // epilogue rows: best plain GEMM of the same shape
  Outcome outcome;

  double tf(double ms) const { return std::isfinite(ms) ? flops / ms / 1e9 : 0; }
};

inline std::string number(double v) { return std::isfinite(v) ? format("%.6g", v) : "null"; }

inline std::string list(const std::vector<double>& values) {
  std::string s = "[";
  for (double v : values) s += (s.size() > 1 ? "," : "") + number(v);
  return s + "]";
}

inline std::string to_json(const Row& r) {
  const Outcome& o = r.outcome;
  std::string s = format(
      "{\"case\":\"%s\",\"linear\":\"%s\",\"pass\":\"%s\",\"M\":%lld,\"N\":%lld,\"K\":%lld,\"count\":%d,"
      "\"default_ms\":%s,\"gemm_ex_ms\":%s,\"best_nk_ms\":%s,\"best_kn_ms\":%s,\"offered\":%d,"
      "\"offered_by\":\"%s\",\"screened\":%d,\"seconds\":%.2f,",
      r.case_name.c_str(), r.linear.c_str(), r.pass.c_str(), (long long)r.m, (long long)r.n, (long long)r.k,
      r.count, number(o.default_ms()).c_str(), number(o.gemm_ex_ms()).c_str(), number(o.best_ms(kNK)).c_str(),
      number(o.best_ms(kKN)).c_str(), o.offered, o.offered_by.c_str(), o.screened, o.seconds);
  if (r.plain_ms > 0) s += format("\"plain_ms\":%.6g,\"separate_ms\":%.6g,", r.plain_ms, r.separate_ms);
  s += format("\"best_nk\":%d,\"best_kn\":%d,\"finalists\":[", o.best[kNK], o.best[kKN]);
  for (size_t i = 0; i < o.finalists.size(); ++i) {
    const Candidate& c = o.finalists[i];
    s += format("%s{\"what\":\"%s\",\"screen_ms\":%s,\"error\":%.3g,\"select_ms\":%s,\"confirm_ms\":%s}",
                i ? "," : "", c.text().c_str(), number(c.screen_ms).c_str(), c.error,
                list(c.select_ms).c_str(), list(c.confirm_ms).c_str());
  }
  return s + "]}";
}

struct Totals {
  double default_ms = 0, gemm_ex_ms = 0, best_nk_ms = 0, best_any_ms = 0;
  int gemms = 0;
};

// Sums over a whole step: layers x passes x micro-batches. best_any_ms uses, for each weight, the storage
// whose three passes are fastest in total.
inline Totals step_totals(const Case& c, const std::vector<Row>& rows, Pass weight_grad) {
  Totals t;
  const std::string from = c.same_as ? c.same_as : c.name;
  for (const Linear& lin : linears(c)) {
    double by_storage[2] = {0, 0};
    int found = 0;
    for (Pass pass : {kForward, kInputGrad, weight_grad})
      for (const Row& r : rows) {
        if (r.case_name != from || r.linear != lin.name || r.pass != kPassNames[pass]) continue;
        const double times = double(lin.count) * c.accum;
        t.default_ms += times * r.outcome.default_ms();
        t.gemm_ex_ms += times * r.outcome.gemm_ex_ms();
        for (Storage s : {kNK, kKN}) by_storage[s] += times * r.outcome.best_ms(s);
        ++found;
      }
    t.gemms += found;
    t.best_nk_ms += by_storage[kNK];
    t.best_any_ms += std::min(by_storage[kNK], by_storage[kKN]);
  }
  return t;
}

inline void print_totals(const Case& c, const std::vector<Row>& rows) {
  for (Pass pass : {kWeightGradBf16, kWeightGradF32}) {
    const Totals t = step_totals(c, rows, pass);
    if (!t.gemms) continue;
    printf(
        "  STEP %-13s %s (%d of 15 products): default %.2f ms, gemmEx %.2f ms, best nk %.2f ms (gain "
        "%.2f%%), best of "
        "both storages %.2f ms (gain %.2f%%)\n",
        c.name, kPassNames[pass], t.gemms, t.default_ms, t.gemm_ex_ms, t.best_nk_ms,
        100 * (1 - t.best_nk_ms / t.default_ms), t.best_any_ms, 100 * (1 - t.best_any_ms / t.default_ms));
  }
}

inline void print_table(const Case& c, const std::vector<Row>& rows) {
  printf("\n== %s (GEMMs of a micro-batch; TFLOP/s; ratio = default time / best time, nk storage)\n", c.name);
  printf("  %-5s %-8s %6s %6s %6s %8s %8s %8s %6s %8s  %s\n", "layer", "pass", "M", "N", "K", "default",
         "gemmEx", "best nk", "ratio", "best kn", "best nk algorithm");
  const std::string from = c.same_as ? c.same_as : c.name;
  for (const Row& r : rows) {
    if (r.case_name != from || r.plain_ms > 0) continue;
    const Outcome& o = r.outcome;
    printf("  %-5s %-8s %6lld %6lld %6lld %8.1f %8.1f %8.1f %6.3f %8.1f  %s\n", r.linear.c_str(),
           r.pass.c_str(), (long long)r.m, (long long)r.n, (long long)r.k, r.tf(o.default_ms()),
           r.tf(o.gemm_ex_ms()), r.tf(o.best_ms(kNK)), o.default_ms() / o.best_ms(kNK), r.tf(o.best_ms(kKN)),
           o.finalists[o.best[kNK]].text().c_str());
  }
  print_totals(c, rows);
  for (const Row& r : rows) {
    if (r.case_name != from || !(r.plain_ms > 0)) continue;
    const double fused = r.outcome.best_ms(kNK), separate_total = r.plain_ms + r.separate_ms;
    printf(
        "  EPILOGUE %-5s %-22s default %.4f best %.4f ms | plain best %.4f + separate %.4f = %.4f ms | saves "
        "%+.4f ms a "
        "run, %+.2f ms a step | %s\n",
        r.linear.c_str(), r.pass.c_str(), r.outcome.default_ms(), fused, r.plain_ms, r.separate_ms,
        separate_total, separate_total - fused, (separate_total - fused) * r.count * c.accum,
        r.outcome.finalists[r.outcome.best[kNK]].text().c_str());
  }
  fflush(stdout);
}

inline void write_json(const std::string& path, const std::vector<Row>& rows, const std::string& note,
                       double seconds) {
  FILE* f = fopen((path + ".part").c_str(), "w");
  if (!f) throw std::runtime_error("cannot write " + path + ".part");
  fprintf(f, "{\"note\":\"%s\",\"seconds\":%.1f,\"steps\":[", note.c_str(), seconds);
  bool is_first = true;
  for (const Case& c : kCases)
    for (Pass pass : {kWeightGradBf16, kWeightGradF32}) {
      const Totals t = step_totals(c, rows, pass);
      if (!t.gemms) continue;
      fprintf(f,
              "%s\n{\"case\":\"%s\",\"wgrad\":\"%s\",\"products\":%d,\"default_ms\":%s,\"gemm_ex_ms\":%s,"
              "\"best_nk_ms\":%s,\"best_any_ms\":%s}",
              is_first ? "" : ",", c.name, kPassNames[pass], t.gemms, number(t.default_ms).c_str(),
              number(t.gemm_ex_ms).c_str(), number(t.best_nk_ms).c_str(), number(t.best_any_ms).c_str());
      is_first = false;
    }
  fprintf(f, "],\n\"rows\":[");
  for (size_t i = 0; i < rows.size(); ++i) fprintf(f, "%s\n%s", i ? "," : "", to_json(rows[i]).c_str());
  fprintf(f, "]}\n");
  fclose(f);
  if (rename((path + ".part").c_str(), path.c_str())) throw std::runtime_error("cannot write " + path);
}
